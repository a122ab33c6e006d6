"""`/ws`: what a client is told of its jobs as they happen."""
