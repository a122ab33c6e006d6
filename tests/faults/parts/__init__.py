"""The service with all that it runs on, each part of which can be harmed."""
