"""Comfy API v2 (https://docs.comfy.org, openapi-v2.yaml): workflows from applications."""
