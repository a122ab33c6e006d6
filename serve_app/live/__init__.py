"""Event streams. Each replica reads new events from the log once for all its streams."""
