"""Comfy API v2 (https://docs.comfy.org, openapi-v2.yaml), with which applications run workflows."""
