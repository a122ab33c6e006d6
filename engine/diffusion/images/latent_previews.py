"""The latent of an unfinished picture as a small JPEG, by a fixed linear map of its channels.

A pixel of a preview is a pixel of the latent. The maps are least-squares fits of what the families'
VAEs decode. SD 1 and 2, which share theirs: keturn, "Decoding latents to RGB without upscaling",
https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204. SDXL: T. A. Vass,
"Explaining the SDXL latent space", https://huggingface.co/blog/TimothyAlexisVass/explaining-the-sdxl-latent-space.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from engine.diffusion.previews import RunPreviews
from engine.graph.families import Family

_MAX_SIDE = 256
_QUALITY = 75


@dataclass(frozen=True, slots=True, eq=False)
class _Map:
    """From the four channels of a latent, as a model has it, to red, green and blue of 0..255."""

    weights: NDArray[np.float32]
    """(4, 3)"""
    bias: NDArray[np.float32]
    """(3,)"""


def _map(weights: list[list[float]], bias: tuple[float, float, float]) -> _Map:
    return _Map(np.array(weights, np.float32), np.array(bias, np.float32))


_SD = _map(
    [
        [38.0, 26.4, 26.5],
        [23.8, 36.5, 22.1],
        [-20.1, 24.1, 33.7],
        [-23.5, -34.6, -60.3],
    ],
    (127.5, 127.5, 127.5),
)
_SDXL = _map(
    [[60.0, 60.0, 60.0], [-60.0, -5.0, 10.0], [25.0, 15.0, -5.0], [-70.0, -50.0, -35.0]],
    (150.0, 140.0, 130.0),
)
_MAPS = {
    Family.SD1: _SD,
    Family.SD2: _SD,
    Family.SDXL: _SDXL,
    Family.SDXL_REFINER: _SDXL,
}


def show_estimate(previews: RunPreviews, family: Family, estimate: Tensor) -> None:
    """Have a preview made of the first of a batch, (batch, channels, height, width), where one is
    due and there is a map for the family.
    """
    if family in _MAPS and previews.wants():
        first = estimate[0].clone()  # the sampler may go on in place
        copy = _copier(first)
        previews.show(lambda: jpeg_of(copy(), family))


def jpeg_of(latent: NDArray[np.float32], family: Family) -> bytes:
    """`latent` is (4, height, width), as the family's models have it."""
    found = _MAPS[family]
    pixels = np.einsum("chw,cr->hwr", latent, found.weights) + found.bias
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
