"""The event loops of this process, and its caches of text."""
