"""Forgetting: erase messages with their copies and everything made from them."""
