"""A result as the file that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from actors.worker.image_file import AS_PNG, ImageEncoding, encode_image
from actors.worker.plan import Plan, plan_text
from engine.reports import ImageReady, LatentReady
from storage.keys import SAFETENSORS

_PIXELS_PER_CELL = 8


@dataclass(frozen=True, slots=True)
class ResultFile:
    content: bytes
    width: int
    height: int
    media_type: str | None = None
    """None: a PNG."""


def planned_file(plan: Plan, result: ImageReady | LatentReady) -> ResultFile:
    return encode_result(result, plan_text(plan, result), plan.encoding)


def encode_result(
    result: ImageReady | LatentReady,
    text: Mapping[str, str],
    encoding: ImageEncoding = AS_PNG,
) -> ResultFile:
    """`text` is what the file says of itself; `encoding` is for images."""
    match result:
        case ImageReady(pixels=pixels):
            height, width, _ = pixels.shape
            content, media_type = encode_image(pixels, text, encoding)
            return ResultFile(content, width, height, media_type)
        case LatentReady(samples=samples):
            height, width = (side * _PIXELS_PER_CELL for side in samples.shape[-2:])
            return ResultFile(_encode_latent(samples, text), width, height, SAFETENSORS)


def _encode_latent(samples: NDArray[np.float32], text: Mapping[str, str]) -> bytes:
    """As ComfyUI's; the empty tensor says that the scale is the VAE's."""
    tensors = {
        "latent_tensor": np.ascontiguousarray(samples),
        "latent_format_version_0": np.zeros(0, np.float32),
    }
    return save(tensors, metadata=dict(text))
