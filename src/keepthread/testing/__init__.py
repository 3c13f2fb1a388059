"""What users who write tests need: the store contract, hostile inputs, a clock, models, servers."""
