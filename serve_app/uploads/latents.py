"""Makes a plain latent file of whatever safetensors file a caller sends."""

from __future__ import annotations

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from serve_app.uploads.images import Kept, UploadRefused

_TENSOR = "latent_tensor"
_VERSION = "latent_format_version_0"
_KINDS = {np.dtype(np.float32), np.dtype(np.float16)}
_PIXELS_PER_CELL = 8


def read_input_latent(data: bytes, *, max_pixels: int) -> Kept:
    """The latent alone, (batch, channels, height, width), as ComfyUI's SaveLatent writes it; other
    tensors and the metadata are not kept. Raises UploadRefused.
    """
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise UploadRefused("The file is no safetensors file, or is damaged.") from error
    latent = tensors.get(_TENSOR)
    if latent is None or latent.ndim != 4 or latent.dtype not in _KINDS or not latent.size:
        raise UploadRefused(
            f"The file has no {_TENSOR} of 16 or 32 bits and (batch, channels, height, width)."
        )
    if not np.isfinite(latent).all():
        raise UploadRefused("The latent has values that are not finite.")
    height, width = (side * _PIXELS_PER_CELL for side in latent.shape[-2:])
    if len(latent) * height * width > max_pixels:
        raise UploadRefused(f"The latent stands for more than {max_pixels} pixels.")
    kept = {_TENSOR: latent}
    if _VERSION in tensors:
        kept[_VERSION] = np.zeros(0, np.float32)
    return Kept(save(kept), width, height)
