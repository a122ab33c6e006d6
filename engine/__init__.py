"""Inference without a server: graphs, nodes, samplers and batches.

Only the package `engine.diffusion` imports torch.
"""
