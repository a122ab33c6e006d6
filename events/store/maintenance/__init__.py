"""All of the tables at once: looked at as they are, and built anew."""
