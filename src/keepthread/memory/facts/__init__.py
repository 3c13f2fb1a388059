"""Facts: knowledge that outlives a session, each with the messages it comes from."""
