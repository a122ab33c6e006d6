"""Nodes of latents."""
