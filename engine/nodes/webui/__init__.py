"""Nodes for what the WebUI does otherwise than ComfyUI."""
