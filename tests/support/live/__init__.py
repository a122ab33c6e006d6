"""Event streams as a client sees them."""
