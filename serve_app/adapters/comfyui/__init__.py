"""ComfyUI's own API over the workflow jobs of the caller, and its web front end."""
