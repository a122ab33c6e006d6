"""Programs that use the service as a caller does."""
