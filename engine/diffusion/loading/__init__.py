"""Reads model files, and keeps the models that are loaded from them."""
