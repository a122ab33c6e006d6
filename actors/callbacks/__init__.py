"""Delivery of results to callback URLs: single tries, retries, and the role that runs them."""
