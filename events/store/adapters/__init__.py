"""What protocols of other programs keep for their callers: rows that no log can give back."""
