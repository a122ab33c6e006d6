"""Endpoints: their cache for submissions, and their administration."""
