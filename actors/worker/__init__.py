"""What runs on a worker: one job at a time in each job actor, and the engine they share."""
