"""Model files, and everything that is loaded from them."""
