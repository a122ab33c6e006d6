"""What the service tells an operator of itself: metrics in Prometheus' form."""
