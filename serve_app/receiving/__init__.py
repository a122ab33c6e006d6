"""Bodies of requests that are more than JSON."""
