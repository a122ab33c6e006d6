"""Authenticates callers, and checks their permissions and limits."""
