"""The HTTP API and the Serve application."""
