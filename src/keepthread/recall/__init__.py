"""Recall: ranks search results and packs them into a budget. Pure: no clock, disk or randomness."""
