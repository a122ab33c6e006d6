"""Streams of the log, as tests make them."""
