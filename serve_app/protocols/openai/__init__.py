"""OpenAI's images API (https://platform.openai.com/docs/api-reference/images)."""
