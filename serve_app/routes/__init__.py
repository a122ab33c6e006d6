"""The routes of the HTTP API, a module each."""
