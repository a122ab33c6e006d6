"""Trains `darkroom-shapes`, a small latent diffusion model, on pictures that it draws itself."""
