"""The commands of `keepthread`, one module per command."""
