"""A Ray cluster of several nodes on this machine, with the service on it and what it needs."""
