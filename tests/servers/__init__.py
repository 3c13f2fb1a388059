"""Real servers for the tests, each on a port of its own, in a folder that goes with it."""
