"""Forgetting: messages are erased with their copies and with all that was made from them."""
