"""The text that the WebUI writes into a PNG: written, and read back."""
