"""What events are outside of a process: bytes."""
