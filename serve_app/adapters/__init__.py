"""Protocols of other programs, each a room of its own over the same jobs, keys and limits."""
