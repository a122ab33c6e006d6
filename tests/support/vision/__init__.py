"""Support for tests of image prompts: tiny CLIP vision models and IP-Adapters."""
