"""Conversion of the files of ComfyUI's editor to graphs."""
