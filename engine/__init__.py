"""Inference without a server: graphs, nodes, samplers, batches. Only `diffusion` imports torch."""
