"""All code that uses NATS: the connection, the log on JetStream, queues and subscriptions."""
