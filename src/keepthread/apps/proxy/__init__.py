"""The memory proxy: gives memory to programs that only change their `base_url`.

It relays requests to a provider, adds relevant memory to the newest question, and records the
conversation. `request` reads a request, `memory` decides what to add and records, `relay`
carries the bytes.
"""
