"""From the log to a worker with room: the router, the dispatcher, workers and their slots."""
