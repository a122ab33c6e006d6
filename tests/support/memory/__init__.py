"""The log and the queues in memory, which replace those on JetStream in tests of their users."""
