"""Loads checkpoints: makes models of files and folders and keeps them in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoint_info import Component, inspect, inspect_vae
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.unets import dtype_of, prepared
from engine.diffusion.loading.weights import LoadTarget, first_line
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise_levels import stable_diffusion
from engine.diffusion.text.encoding import Clip
from engine.diffusion.text.text_encoders import TextEncoder, TextEncoderSpec, made_on_meta
from engine.diffusion.text.textual_inversion import Embeddings
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import CHECKPOINTS, VAES

M = TypeVar("M", bound=nn.Module)
_BAD_CONFIGURATION = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The models of one checkpoint."""

    name: str
    model: Model
    clip: Clip
    vae: Vae


def load_checkpoint(store: ModelStore, name: str) -> Checkpoint:
    """The models of a checkpoint, from memory or from disk; raises CheckpointUnavailable."""
    path = store.models.path(CHECKPOINTS, name)
    identity = store.identity(path)
    info = store.inspect_once(inspect, path, identity)
    unet = store.get_or_create(("unet", identity), lambda: _read_unet(store, info.unet), label=name)
    encoders = tuple(
        store.get_or_create(
            ("text", at, identity), partial(_read_text_encoder, store, component, spec)
        )
        for at, (component, spec) in enumerate(info.text_encoders)
    )
    autoencoder: Any = store.get_or_create(
        ("vae", identity),
        lambda: _read_module(
            store, AutoencoderKL, info.vae, LoadTarget(store.device, torch.float32)
        ),
    )
    return Checkpoint(
        name,
        Model(
            unet,
            latent_scale=autoencoder.config.scaling_factor,
            levels=stable_diffusion(zero_terminal=info.has_zero_terminal_snr),
            prediction=info.prediction,
            family=info.family,
        ),
        Clip(encoders, store.encoding_cache, Embeddings(store)),
        Vae(autoencoder),
    )


def _read_unet(store: ModelStore, component: Component) -> Any:
    # Only the UNet gains from half precision: the other models are small, or overflow in it.
    target = LoadTarget(store.device, dtype_of(store.unets, store.device))
    return prepared(_read_module(store, UNet2DConditionModel, component, target), store.unets)


def _read_module(store: ModelStore, cls: Any, component: Component, target: LoadTarget) -> Any:
    """A model of diffusers' class `cls`, with its weights."""
    with _configuration_checked(component), torch.device("meta"):
        module: nn.Module = cls.from_config(component.config)
    return _loaded(store, module, component, target)


def _read_text_encoder(
    store: ModelStore, component: Component, spec: TextEncoderSpec
) -> TextEncoder:
    # ComfyUI keeps text encoders in half precision, so the same pictures need the same rounding.
    target = LoadTarget(store.device, torch.float32, rounded_to=torch.float16)
    with _configuration_checked(component):
        empty = made_on_meta(component.config, spec)
    encoder = use_one_dnn(_loaded(store, empty, component, target))
    embeddings = encoder.text_model.embeddings
    # No file holds this buffer.
    positions = torch.arange(encoder.text_model.config.max_position_embeddings)
    embeddings.position_ids = nn.Buffer(positions[None].to(store.device), persistent=False)
    return encoder


def _loaded(store: ModelStore, module: M, component: Component, target: LoadTarget) -> M:
    weights = module.state_dict()
    store.make_room(sum(each.numel() for each in weights.values()) * target.dtype.itemsize)
    with _configuration_checked(component):
        key_map = component.map_keys(weights)
    return component.weights.load_into(module, key_map, target)


@contextmanager
def _configuration_checked(component: Component) -> Iterator[None]:
    """Raises CheckpointUnavailable if a configuration is no valid one for its model."""
    try:
        yield
    except _BAD_CONFIGURATION as error:
        raise CheckpointUnavailable(
            f"the configuration of {component.weights.name} makes no model: {first_line(error)}"
        ) from error


def load_vae(store: ModelStore, name: str) -> Vae:
    """The VAE of that name in the folder of VAEs; raises CheckpointUnavailable."""
    path = store.models.path(VAES, name)
    component = store.inspect(inspect_vae, path)
    target = LoadTarget(store.device, torch.float32)
    autoencoder = store.get_or_create(
        ("vae", store.identity(path)), lambda: _read_module(store, AutoencoderKL, component, target)
    )
    return Vae(autoencoder)
