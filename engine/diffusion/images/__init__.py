"""Images, masks and latents: their files, their tensors, and operations on them."""
