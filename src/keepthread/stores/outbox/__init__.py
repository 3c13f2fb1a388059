"""The outbox: a local file that takes messages while the store is away, and delivers them."""
