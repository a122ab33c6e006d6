"""For tests of pictures as prompts: tiny CLIP vision models and IP-Adapters."""
