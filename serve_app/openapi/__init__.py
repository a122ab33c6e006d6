"""What the OpenAPI document says beside what FastAPI finds out by itself."""
