"""Memory, sessions and turns, and what is derived from the log."""
