"""Modules of a library's classes, made by a configuration and given the weights of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from engine.diffusion.loading.checkpoint_info import Component
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.memory.streaming import require_room, resident_bytes, stream
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import LoadTarget, first_line
from engine.diffusion.text.text_encoders import TextEncoder, TextEncoderSpec, made_on_meta
from engine.errors import CheckpointUnavailable

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
    """A model of diffusers' class `cls`, with its weights."""
    return loaded(store, empty_module(cls, component), component, target)


def empty_module(cls: Any, component: Component) -> Any:
    """A model of diffusers' class `cls` on the meta device."""
    with configuration_checked(component.weights.name), torch.device("meta"):
        return cls.from_config(component.config)


def loaded(store: ModelStore, module: M, component: Component, target: LoadTarget) -> M:
    """A module on the meta device with its weights, for which room is made if all are there."""
    weights = module.state_dict()
    with configuration_checked(component.weights.name):
        key_map = component.map_keys(weights)
    component.weights.require(weights, key_map)
    if not target.is_streamed:
        store.make_room(sum(each.numel() for each in weights.values()) * target.dtype.itemsize)
    return component.weights.load_into(module, key_map, target)


def target_within_room(
    store: ModelStore, module: nn.Module, name: str, target: LoadTarget
) -> LoadTarget:
    """Where the weights of a module on the meta device go: to the device if they fit there, else
    they are to be streamed. Raises OutOfMemory where neither is possible.
    """
    size_bytes = sum(each.numel() for each in module.parameters()) * target.dtype.itemsize
    if store.room is None or store.fits(size_bytes):
        return target
    require_room(module, name, store.room, target.dtype)
    store.make_room(resident_bytes(module, target.dtype))
    return replace(target, is_streamed=True)


def streamable(module: M, target: LoadTarget) -> M:
    """A module with its weights that can be streamed, and is where they were loaded to be."""
    found: Any = module
    found.is_streamable = True
    return stream(module, target.device) if target.is_streamed else module


@contextmanager
def configuration_checked(name: str) -> Iterator[None]:
    """Raises CheckpointUnavailable if a configuration is no valid one for its model."""
    try:
        yield
    except _BAD_CONFIGURATION as error:
        raise CheckpointUnavailable(
            f"the configuration of {name} makes no model: {first_line(error)}"
        ) from error


def read_clip_encoder(
    store: ModelStore, component: Component, spec: TextEncoderSpec
) -> TextEncoder:
    """A text encoder of CLIP."""
    # ComfyUI keeps text encoders in half precision, so the same pictures need the same rounding.
    target = LoadTarget(store.device, torch.float32, rounded_to=torch.float16)
    with configuration_checked(component.weights.name):
        empty = made_on_meta(component.config, spec)
    encoder = use_one_dnn(loaded(store, empty, component, target))
    embeddings = encoder.text_model.embeddings
    # No file holds this buffer.
    positions = torch.arange(encoder.text_model.config.max_position_embeddings)
    embeddings.position_ids = nn.Buffer(positions[None].to(store.device), persistent=False)
    return encoder
