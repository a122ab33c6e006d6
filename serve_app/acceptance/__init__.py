"""Accepts generate requests: checks them, stores their jobs, and cancels abandoned jobs."""
