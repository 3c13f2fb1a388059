"""Settings of the command line: fields, sources and loading."""
