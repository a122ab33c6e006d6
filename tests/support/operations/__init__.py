"""Support for tests of the operator's commands."""
