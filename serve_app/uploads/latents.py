"""Makes a plain latent file of a safetensors file that a caller sends."""

from __future__ import annotations

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from serve_app.refusals import InvalidLatent
from serve_app.uploads.sanitized_file import SanitizedFile

_TENSOR = "latent_tensor"
_VERSION = "latent_format_version_0"
_KINDS = {np.dtype(np.float32), np.dtype(np.float16)}
_PIXELS_PER_CELL = 8


def read_input_latent(data: bytes, *, max_pixels: int) -> SanitizedFile:
    """Only the latent, (batch, channels, height, width), as ComfyUI's SaveLatent writes it.

    Other tensors and the metadata are dropped. Raises InvalidLatent.
    """
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise InvalidLatent("The file is no safetensors file, or is damaged.") from error
    latent = tensors.get(_TENSOR)
    if latent is None or latent.ndim != 4 or latent.dtype not in _KINDS or not latent.size:
        raise InvalidLatent(
            f"The file has no {_TENSOR} of 16 or 32 bits and (batch, channels, height, width)."
        )
    if not np.isfinite(latent).all():
        raise InvalidLatent("The latent has values that are not finite.")
    height, width = (side * _PIXELS_PER_CELL for side in latent.shape[-2:])
    if len(latent) * height * width > max_pixels:
        raise InvalidLatent(f"The latent stands for more than {max_pixels} pixels.")
    sanitized = {_TENSOR: latent}
    if _VERSION in tensors:
        sanitized[_VERSION] = np.zeros(0, np.float32)
    return SanitizedFile(save(sanitized), width, height)
