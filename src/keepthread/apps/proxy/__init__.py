"""The memory proxy: a program changes its `base_url`, and remembers.

It relays requests to a provider, adds to the newest question what the memory knows about it, and
records what is said. `request` reads a request, `memory` decides what to add and records, `relay`
carries the bytes.
"""
