"""Pictures as prompts: CLIP's vision models, unCLIP, and image prompts."""
