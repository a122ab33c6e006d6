"""The WebUI's parameters and prompts, compiled to a graph."""
