"""For tests of the router."""
