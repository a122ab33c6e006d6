"""Trains the checkpoint darkroom-z-shapes, a small flow model in the layout of Z-Image."""
