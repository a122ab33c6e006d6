"""Changes of a UNet that share the UNet's weights, and guidance by the UNet's own attention."""
