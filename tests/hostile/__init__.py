"""Requests that any key of scope `generate` can send to stop, starve or swell the service."""
