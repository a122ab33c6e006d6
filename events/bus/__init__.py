"""What goes through NATS: the connection, the log on JetStream, queues and subscriptions."""
