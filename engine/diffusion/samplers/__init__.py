"""Samplers, and the sigmas and the noise that they work with."""
