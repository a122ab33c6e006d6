"""IP-Adapter for Darkroom: pictures as prompts."""
