"""Event streams, as a client meets them."""
