"""A Ray cluster of several nodes on this machine, with the service and its servers."""
