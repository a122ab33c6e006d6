"""Makes Darkroom's own checkpoints: tiny random checkpoints, and checkpoints that draw shapes."""
