"""Blobs: bytes and long texts, stored in chunks beside the log."""
