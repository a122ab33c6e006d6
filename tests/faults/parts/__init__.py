"""The service with all its servers, each part of which can be harmed."""
