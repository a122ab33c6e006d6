"""Faults injected into a running service, and a check of its history afterwards."""
