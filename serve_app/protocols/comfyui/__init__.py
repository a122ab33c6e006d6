"""ComfyUI's API for the workflow jobs of the caller, and ComfyUI's web page."""
