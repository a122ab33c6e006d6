"""img2img and inpainting in the diffusion flavour."""
