"""UNets, prepared as the options of the device say."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from engine.diffusion.cross_attention_cache import CrossAttentionCache
from engine.diffusion.loading.attention import use_plain_attention
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.row_updates import use_row_updates
from engine.diffusion.vision.row_prompts import RowPrompts
from engine.errors import EngineError
from engine.options import UnetOptions


def dtype_of(options: UnetOptions, device: torch.device) -> torch.dtype:
    """The type of a UNet's weights on that device."""
    if options.precision == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, options.precision)
    return dtype


def prepared(unet: Any, options: UnetOptions) -> Any:
    """The same UNet, in the memory format of the options and compiled if they say so.

    One that is not compiled has a `cross_attention_cache`, `row_updates` for LoRAs, and
    `row_prompts` for image prompts.
    """
    if options.channels_last:
        # Not diffusers' own `to`, which warns of arguments that it does not know.
        nn.Module.to(unet, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    if options.compiler is not None:
        unet.compile(backend=options.compiler, dynamic=True)
        return unet
    # A copy of a prepared UNet has both already, and its layers know them.
    if not hasattr(unet, "cross_attention_cache"):
        unet.cross_attention_cache = CrossAttentionCache()
        use_one_dnn(use_plain_attention(unet), unet.cross_attention_cache)
        use_row_updates(unet)
        unet.row_prompts = RowPrompts(unet)
    return unet


def require_unet(network: Any) -> None:
    """Raises EngineError for the network of a family of transformers."""
    if title := getattr(network, "transformer_of", None):
        raise EngineError(f"this is made for UNets, and {title} has a transformer")
