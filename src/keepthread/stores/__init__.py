"""The backends: each keeps a log and a shelf, and none knows another."""
