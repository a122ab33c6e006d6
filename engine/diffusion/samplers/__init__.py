"""Samplers, sigmas and noise."""
