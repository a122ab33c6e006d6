"""What the work of nodes is worth in megapixel-steps.

A megapixel-step is one call of a UNet for one row of conditioning on a million pixels. The other
constants compare with that call of an SD 1.5 UNet; docs/costs.md explains them. What the models of
a family are worth is among its traits.
"""

from __future__ import annotations

LEAST_MEGAPIXELS = 512 * 512 / 1e6
"""A call of a model takes hardly less time on fewer pixels."""
ATTENTION_MEGAPIXELS = 2.0
"""The size of an image whose attention is as much work as all else in the call of a model. It grows
with the square of the size. Counted for the layers of SD 1.5 at 8 heads of 40."""
TOKEN_MEGAPIXELS = 64 / 1e6
"""A token is as much to attend to as the 8 x 8 pixels of one place of a latent."""
CONTROL = 0.5
"""The call of a ControlNet, as a share of the UNet's call that it joins."""
DECODE = 2.0
"""A megapixel decoded by a VAE."""
ENCODE = 1.0
"""A megapixel encoded by a VAE."""
UPSCALE = 8.0
"""A megapixel given to an upscale model."""
VISION = 0.3
"""An image encoded by a CLIP vision model."""
CHUNK = 0.02
"""A chunk of a text, of 77 tokens, encoded."""
LOAD = 20.0
"""A checkpoint loaded, or a LoRA merged into one."""
LOAD_PART = 5.0
"""A VAE, a ControlNet or an upscale model loaded."""
SIGMA = 1e-5
"""A sigma of a schedule computed."""
RESAMPLE = 1.0
"""A megapixel resized, of the larger of the two sizes."""
COPY = 0.1
"""A megapixel made, copied or changed without resizing."""
FILE = 4.0
"""A megapixel read from a file or written to one."""
