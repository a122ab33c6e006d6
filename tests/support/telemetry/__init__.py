"""Support for tests of metrics."""
