"""Log lines of the service, its metrics in the Prometheus format, and its traces."""
