"""Encodes prompts: weights, chunks, text encoders and embeddings."""
