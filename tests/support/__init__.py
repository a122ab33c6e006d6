"""The foundations of the tests: fakes, real servers, and test data."""
