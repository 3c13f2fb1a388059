"""Conversations on their way out and in: one lossless format of our own."""
