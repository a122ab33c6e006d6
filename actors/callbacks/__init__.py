"""Delivery of results to callback URLs, with retries, circuit breakers and presigned uploads."""
