"""The work of nodes in megapixel-steps.

A megapixel-step is one call of an SD 1.5 UNet for one row of conditioning on a million pixels. Each
constant gives the work of an operation in this unit; docs/costs.md explains the constants. The
factors for the models of a family are in the family's traits.
"""

from __future__ import annotations

LEAST_MEGAPIXELS = 512 * 512 / 1e6
"""The smallest size of a call of a model. With fewer pixels, a call takes nearly the same time."""
ATTENTION_MEGAPIXELS = 2.0
"""The size of an image at which attention is half of the work of a model call. The work of
attention grows with the square of the size. The value holds for the layers of SD 1.5 with 8 heads
of 40 channels."""
TOKEN_MEGAPIXELS = 64 / 1e6
"""The work of attention to a token, equal to attention to one cell of a latent (8 x 8 pixels)."""
CONTROL = 0.5
"""The work of a ControlNet call, as a share of the work of its UNet call."""
GLIGEN = 0.4
"""The work of the layers of GLIGEN, as a share of the work of a UNet call."""
DECODE = 2.0
"""The work to decode a megapixel with a VAE."""
ENCODE = 1.0
"""The work to encode a megapixel with a VAE."""
UPSCALE = 8.0
"""The work of an upscale model for a megapixel of its input."""
VISION = 0.3
"""The work to encode an image with a CLIP vision model."""
CHUNK = 0.02
"""The work to encode a chunk of a text (77 tokens)."""
LOAD = 20.0
"""The work to load a checkpoint, or to merge a LoRA into a checkpoint."""
LOAD_PART = 5.0
"""The work to load a VAE, a ControlNet or an upscale model."""
SIGMA = 1e-5
"""The work to compute a sigma of a schedule."""
RESAMPLE = 1.0
"""The work to resize a megapixel. The larger of the two sizes counts."""
COPY = 0.1
"""The work to make, copy or change a megapixel without resizing."""
FILE = 4.0
"""The work to read a megapixel from a file, or to write it to a file."""
