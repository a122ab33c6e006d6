"""Support for tests of callbacks: the running role, receivers and a proxy, hostile addresses."""
