"""The domain layer: event types, the state of jobs, the event log, and the read models."""
