"""Bodies that come as forms."""
