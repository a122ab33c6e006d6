"""Preprocessors without weights for Darkroom."""
