"""Compiles the parameters and prompts of the WebUI to a graph."""
