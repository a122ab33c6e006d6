"""Pictures in the place of texts: CLIP's vision models, unCLIP, and image prompts."""
