"""Import and export of conversations, with one lossless format of our own."""
