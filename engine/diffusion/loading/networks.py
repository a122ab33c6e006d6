"""Makes networks from configurations and weights, and prepares them for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from engine.diffusion.adapters import use_row_updates
from engine.diffusion.loading.checkpoint_info import Component
from engine.diffusion.loading.layers import CrossAttentionCache, use_one_dnn, use_plain_attention
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.streaming import require_streaming_memory, resident_bytes, stream
from engine.diffusion.loading.weights import LoadTarget, first_line
from engine.diffusion.text.text_encoders import TextEncoder, TextEncoderSpec, made_on_meta
from engine.diffusion.vision.row_prompts import RowPrompts
from engine.errors import CheckpointUnavailable, EngineError
from engine.options import UnetOptions


def unet_dtype(options: UnetOptions, device: torch.device) -> torch.dtype:
    if options.precision == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, options.precision)
    return dtype


def prepared(unet: Any, options: UnetOptions) -> Any:
    """Set the memory format of a UNet, and compile it or replace its layers. Returns the UNet.

    A UNet that is not compiled gets a `cross_attention_cache`, `row_updates` for LoRAs, and
    `row_prompts` for image prompts.
    """
    if options.channels_last:
        # The method `to` of diffusers would warn that it does not support this argument.
        nn.Module.to(unet, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    if options.compiler is not None:
        unet.compile(backend=options.compiler, dynamic=True)
        return unet
    # A copy of a prepared UNet has these objects already, and its layers refer to them.
    if not hasattr(unet, "cross_attention_cache"):
        unet.cross_attention_cache = CrossAttentionCache()
        use_one_dnn(use_plain_attention(unet), unet.cross_attention_cache)
        use_row_updates(unet)
        unet.row_prompts = RowPrompts(unet)
    return unet


def require_unet(network: Any) -> None:
    """Raise EngineError if the network is a transformer."""
    if title := getattr(network, "transformer_of", None):
        raise EngineError(f"this node is for UNets, but {title} has a transformer")


M = TypeVar("M", bound=nn.Module)
_BAD_CONFIGURATION = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    StrictDataclassError,
    TypeError,
    ValueError,
)


def read_module(store: ModelStore, cls: Any, component: Component, target: LoadTarget) -> Any:
    """Read a model of diffusers' class `cls` with its weights."""
    return load_module(store, empty_module(cls, component), component, target)


def empty_module(cls: Any, component: Component) -> Any:
    """Return a model of diffusers' class `cls` on the meta device."""
    with configuration_checked(component.weights.name), torch.device("meta"):
        return cls.from_config(component.config)


def load_module(store: ModelStore, module: M, component: Component, target: LoadTarget) -> M:
    """Load the weights of a module that is on the meta device. Returns the module.

    Raises CheckpointUnavailable if a weight is missing, before other models are dropped.
    """
    weights = module.state_dict()
    with configuration_checked(component.weights.name):
        key_map = component.map_keys(weights)
    component.weights.require(weights, key_map)
    if not target.is_streamed:
        store.free_for(sum(each.numel() for each in weights.values()) * target.dtype.itemsize)
    return component.weights.load_into(module, key_map, target)


def target_within_memory(
    store: ModelStore, module: nn.Module, name: str, target: LoadTarget
) -> LoadTarget:
    """Return `target`, changed to streaming if the weights of a module do not fit on the device.

    Raises OutOfMemory if there is not enough memory for streaming either.
    """
    size_bytes = sum(each.numel() for each in module.parameters()) * target.dtype.itemsize
    if store.free_memory_of is None or store.fits(size_bytes):
        return target
    require_streaming_memory(module, name, store.free_memory_of, target.dtype)
    store.free_for(resident_bytes(module, target.dtype))
    return replace(target, is_streamed=True)


def mark_streamable(module: M, target: LoadTarget) -> M:
    """Mark a module as streamable, and stream it if its weights were loaded for streaming."""
    found: Any = module
    found.is_streamable = True
    return stream(module, target.device) if target.is_streamed else module


@contextmanager
def configuration_checked(name: str) -> Iterator[None]:
    """Raise CheckpointUnavailable if a configuration is not valid for its model."""
    try:
        yield
    except _BAD_CONFIGURATION as error:
        raise CheckpointUnavailable(
            f"no model can be built from the configuration of {name}: {first_line(error)}"
        ) from error


def read_clip_encoder(
    store: ModelStore, component: Component, spec: TextEncoderSpec
) -> TextEncoder:
    # ComfyUI keeps text encoders in half precision. Equal pictures need the same rounding.
    target = LoadTarget(store.device, torch.float32, rounded_to=torch.float16)
    with configuration_checked(component.weights.name):
        empty = made_on_meta(component.config, spec)
    encoder = use_one_dnn(load_module(store, empty, component, target))
    embeddings = encoder.text_model.embeddings
    # Files do not contain this buffer.
    positions = torch.arange(encoder.text_model.config.max_position_embeddings)
    embeddings.position_ids = nn.Buffer(positions[None].to(store.device), persistent=False)
    return encoder
