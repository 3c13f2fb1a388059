"""`keepthread chat`: a conversation in the terminal that is kept as it goes."""
