"""Protocols, one package for each. All protocols use the same jobs, keys and limits."""
