"""The long-running roles, and the actors of a worker."""
