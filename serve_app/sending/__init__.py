"""Answers that are sent in parts."""
