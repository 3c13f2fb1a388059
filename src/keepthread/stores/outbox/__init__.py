"""The outbox: a local file that queues messages while the store is unavailable."""
