"""The latent of an unfinished picture as a small JPEG, by a fixed linear map of its channels.

A pixel of a preview is a pixel of the latent. The maps are those of the families.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from engine.diffusion.previews import RunPreviews
from engine.families.family import Preview, Traits

_MAX_SIDE = 256
_QUALITY = 75


def show_estimate(previews: RunPreviews, family: Traits, estimate: Tensor) -> None:
    """Have a preview made of the first of a batch, (batch, channels, height, width), where one is
    due and there is a map for the family.
    """
    if family.preview is not None and previews.wants():
        first = estimate[0].clone()  # the sampler may go on in place
        copy, colours = _copier(first), family.preview
        previews.show(lambda: jpeg_of(copy(), colours))


def jpeg_of(latent: NDArray[np.float32], colours: Preview) -> bytes:
    """`latent` is (channels, height, width), as the family's models have it."""
    weights = np.array(colours.weights, np.float32)
    pixels = np.einsum("chw,cr->hwr", latent, weights) + np.array(colours.bias, np.float32)
    pixels = np.nan_to_num(pixels, posinf=255.0, neginf=0.0)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _copier(latent: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Copies it to the host from another thread, which waits for the device in its place."""
    if latent.device.type != "cuda":
        return lambda: _on_host(latent)
    made = torch.cuda.Event()
    made.record()

    def copy() -> NDArray[np.float32]:
        stream = torch.cuda.Stream(latent.device)
        stream.wait_event(made)
        with torch.cuda.stream(stream):
            return _on_host(latent)

    return copy


def _on_host(latent: Tensor) -> NDArray[np.float32]:
    with torch.inference_mode():
        found: NDArray[np.float32] = latent.to("cpu", torch.float32).numpy()
        return found
