"""UNets as the options of the device want them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from engine.diffusion.cross_attention_cache import KeptTexts
from engine.diffusion.loading.linear import use_one_dnn
from engine.options import UnetOptions


def dtype_of(options: UnetOptions, device: torch.device) -> torch.dtype:
    """Of the weights."""
    if options.precision == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, options.precision)
    return dtype


def prepared(unet: Any, options: UnetOptions) -> Any:
    """The UNet itself, its memory laid out and its calls compiled as told."""
    if options.channels_last:
        # Not diffusers' own `to`, which warns of what it does not know.
        nn.Module.to(unet, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    if options.compiler is not None:
        unet.compile(backend=options.compiler, dynamic=True)
        return unet
    unet.kept_texts = KeptTexts()
    return use_one_dnn(unet)
