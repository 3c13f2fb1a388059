"""What users who write backends need: the store contract, hostile inputs, a clock."""
