"""The processes of a worker: job actors, which run one job at a time, and their common engine."""
