"""Recall: pure ranking and packing of what was found; no clock, no disk, no chance."""
