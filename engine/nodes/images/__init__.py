"""Nodes of images and masks."""
