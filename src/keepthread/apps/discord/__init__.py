"""Places where people talk, wired to whatever answers: Discord."""
