"""Facts: what is known beyond one session, each with the messages that say so."""
