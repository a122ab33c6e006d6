"""What ComfyUI's page keeps for the caller: settings, workflows and other files."""
