"""What processes tell of themselves on the bus, to whoever asks for metrics."""
