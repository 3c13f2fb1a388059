"""Programs built on the library: the command line and the Discord bot."""
