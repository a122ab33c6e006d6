"""What leaves a process: events, progress and callbacks, as bytes."""
