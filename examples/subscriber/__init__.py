"""Subscribers to the events of all jobs. `follow.py` and `follow.mjs` do the same."""
