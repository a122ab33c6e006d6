"""Families of models beyond Stable Diffusion: one module each."""
