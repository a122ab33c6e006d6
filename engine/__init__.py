"""Pure inference: graph, nodes, samplers, batching, checkpoints. Torch is below `diffusion`."""
