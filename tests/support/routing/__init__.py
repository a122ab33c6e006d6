"""Support for tests of the router."""
