"""The log and the queues in memory: twins of those on JetStream, for tests of what uses them."""
