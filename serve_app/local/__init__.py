"""Everything that runs on one machine: Ray, Serve and nats-server."""
