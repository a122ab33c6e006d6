"""The log of the jobs as one stream of NATS or several."""
