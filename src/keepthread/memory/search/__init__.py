"""Search over messages: indexing, ranking and vectors."""
