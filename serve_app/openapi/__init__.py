"""Parts of the OpenAPI document that FastAPI does not derive from the routes."""
