"""The SQL database: the read model, API keys, endpoints, leases and uploads."""
