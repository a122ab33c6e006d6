"""Reads model files and keeps the loaded models in memory."""
