"""Changes of a UNet that share its weights, and guidance by what it makes of itself."""
