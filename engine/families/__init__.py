"""The model families, described without torch: their traits, and how their files are recognized."""
