"""What happened: event types, the job's state folded from them, the log, the read models."""
