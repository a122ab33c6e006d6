"""Images, masks and latents: as files, as tensors, and from one to the other."""
