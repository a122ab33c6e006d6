"""Reads the latent files that come with a job: safetensors, as ComfyUI's SaveLatent writes them."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load

from engine.diffusion.images.latents import CHANNELS, DEEP_CHANNELS, PIXELS_PER_LATENT, Latent
from engine.errors import InputFileUnavailable
from engine.graph.limits import Limits

_CHANNELS = {CHANNELS, DEEP_CHANNELS}
_TENSOR = "latent_tensor"
_VERSION = "latent_format_version_0"
_FIRST_SCALE = 0.18215
"""Files without a version hold latents multiplied by this, as the UNet takes them."""


def read_latent(content: bytes, name: str, limits: Limits) -> Latent:
    """The latent in a file; raises InputFileUnavailable, TooLarge."""
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputFileUnavailable(f"{name} is no latent: {error}") from error
    samples = tensors.get(_TENSOR)
    if (
        samples is None
        or samples.ndim != 4
        or samples.shape[1] not in _CHANNELS
        or not len(samples)
    ):
        shape = "no" if samples is None else f"{tuple(samples.shape)} as its"
        raise InputFileUnavailable(
            f"{name} has {shape} {_TENSOR}; it must be (batch, 4 or 16, height, width)."
        )
    height, width = (side * PIXELS_PER_LATENT for side in samples.shape[-2:])
    limits.require_batch(len(samples), width=width, height=height)
    return Latent(samples.float() / (1.0 if _VERSION in tensors else _FIRST_SCALE))
