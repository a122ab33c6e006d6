"""A client of ComfyUI servers, and the process of a ComfyUI install.

Nothing of ComfyUI is imported. A server is used only by its HTTP and websocket interface.
"""
