"""Programs that use the service in the same way as a caller."""
