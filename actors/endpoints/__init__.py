"""Endpoints as rows that come and go: what becomes of their jobs, and what is told of them."""
