"""Choosing and showing what a model sees; pure, so that it can be tested with made-up histories."""
