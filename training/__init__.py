"""Makes our own checkpoints: tiny random ones for tests, and a trained one that draws shapes."""
