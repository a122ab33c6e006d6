"""Loads networks and text encoders that lie in files of their own, or together in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL

from engine.diffusion.families.encoders import computing_dtype, encoders_in, texts_of
from engine.diffusion.families.lookup import model_family, transformer_family
from engine.diffusion.families.parts import Part, network_part
from engine.diffusion.families.transformer import TransformerFamily
from engine.diffusion.images.latent_previews import with_preview
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoint_info import inspect_vae
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.modules import (
    configuration_checked,
    empty_module,
    loaded,
    read_module,
    streamable,
    target_within_room,
)
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import LoadTarget
from engine.diffusion.model import Model
from engine.diffusion.row_updates import use_row_updates
from engine.diffusion.text.family_texts import FamilyTexts
from engine.families.family import Family
from engine.families.recognition import checkpoint_family, diffusion_model_family
from engine.graph.models_folder import DIFFUSION_MODELS
from engine.graph.safetensors_header import Header, read_header

_ROUNDED = {
    "default": None,
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fn_fast": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""What weights are rounded to before they get the type that the device computes with."""


def load_diffusion_model(store: ModelStore, name: str, weight_dtype: str) -> Model:
    """The network of that name, from memory or from disk; raises CheckpointUnavailable."""
    path = store.models.path(DIFFUSION_MODELS, name)
    identity = store.identity(path)
    part = store.inspect_once(network_part, path, identity)
    family = transformer_family(diffusion_model_family(Header(path.name, part.weights.shapes)))
    network = store.get_or_create(
        ("network", identity, _ROUNDED[weight_dtype]),
        lambda: _read_network(store, family, part, _ROUNDED[weight_dtype]),
        label=name,
    )
    return model_of(family, network)


def model_of(family: TransformerFamily, network: Any) -> Model:
    """The model with a network of that family."""
    return Model(
        network,
        family,
        latent_scale=family.latent.scale,
        latent_shift=family.latent.shift,
        levels=family.levels(network),
        prediction="flow",
    )


def _read_network(
    store: ModelStore, family: TransformerFamily, part: Part, rounded_to: torch.dtype | None
) -> Any:
    with configuration_checked(part.weights.name):
        config = family.config(part.shapes)
    target = LoadTarget(store.device, computing_dtype(store), rounded_to)
    component = part.component(config, family.key_map)
    empty = empty_module(family.network, component)
    target = target_within_room(store, empty, part.weights.name, target)
    network: Any = use_one_dnn(loaded(store, empty, component, target))
    use_row_updates(network)
    network.transformer_of = family.traits.title
    return streamable(network, target)


def whole_family(path: Path) -> Family | None:
    """The family of a checkpoint with a transformer; None for one with a UNet.

    Raises CheckpointUnavailable.
    """
    if not path.is_dir():
        family = checkpoint_family(read_header(path))
    elif (path / "transformer").is_dir():
        family = diffusion_model_family(Header(path.name, network_part(path).weights.shapes))
    else:
        return None
    return family if isinstance(model_family(family), TransformerFamily) else None


def load_whole(
    store: ModelStore, path: Path, family: Family, *, label: str
) -> tuple[Model, FamilyTexts, Vae]:
    """The models of a checkpoint with a transformer; raises CheckpointUnavailable."""
    identity, plug = store.identity(path), transformer_family(family)
    network = store.get_or_create(
        ("network", identity, None),
        lambda: _read_network(store, plug, network_part(path), None),
        label=label,
    )
    texts = texts_of(store, family, encoders_in(store, path, identity))
    component = store.inspect_once(inspect_vae, path, identity)
    target = LoadTarget(store.device, torch.float32)
    autoencoder = store.get_or_create(
        ("vae", identity), lambda: read_module(store, AutoencoderKL, component, target)
    )
    return model_of(plug, network), texts, with_preview(store, Vae(autoencoder))
