"""The long-running roles and the actors of a worker: plain classes, wrapped in `remote.py`."""
