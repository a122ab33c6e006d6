"""Upkeep of the log and the stores: the historian and the janitor."""
