"""For tests of metrics."""
