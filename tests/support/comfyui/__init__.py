"""Graphs whose pictures are compared with those of ComfyUI."""
