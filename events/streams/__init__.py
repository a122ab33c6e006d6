"""The log as streams of NATS."""
