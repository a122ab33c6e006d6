"""Endpoints as callers use them, and as their owners and administrators make them."""
