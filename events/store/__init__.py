"""What is kept in SQL: the read models, API keys, endpoints, leases and uploads."""
