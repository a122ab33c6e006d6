"""Encodes prompts: their weights, their chunks, the text encoders and the embeddings."""
