"""What guides the denoising, where it counts, and how its answers are joined."""
