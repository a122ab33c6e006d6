"""Checkpoints: from a file or folder to the models that a run works with."""

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
from engine.diffusion.loading.checkpoint_info import Part, look_at, look_at_vae
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.store import ModelStore, identity_of
from engine.diffusion.loading.unets import dtype_of, prepared
from engine.diffusion.loading.weights import Place, first_line
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise_levels import stable_diffusion
from engine.diffusion.text.encoding import Clip
from engine.diffusion.text.text_encoders import Style, TextEncoder, made_on_meta
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
    """The checkpoint's models, read where they are not in memory; raises CheckpointUnavailable."""
    path = store.models.path(CHECKPOINTS, name)
    identity = identity_of(path)
    disk = look_at(path)
    unet = store.made(("unet", identity), lambda: _read_unet(store, disk.unet), label=name)
    encoders = tuple(
        store.made(("text", at, identity), partial(_read_text_encoder, store, part, style))
        for at, (part, style) in enumerate(disk.text_encoders)
    )
    autoencoder: Any = store.made(
        ("vae", identity),
        lambda: read_module(store, AutoencoderKL, disk.vae, Place(store.device, torch.float32)),
    )
    return Checkpoint(
        name,
        Model(
            unet,
            latent_scale=autoencoder.config.scaling_factor,
            levels=stable_diffusion(zero_terminal=disk.zero_terminal),
            prediction=disk.prediction,
            family=disk.family,
        ),
        Clip(encoders, store.encodings, Embeddings(store)),
        Vae(autoencoder),
    )


def _read_unet(store: ModelStore, part: Part) -> Any:
    # The noise predictor alone gains from half precision; the rest is small or overflows in it.
    place = Place(store.device, dtype_of(store.unets, store.device))
    return prepared(read_module(store, UNet2DConditionModel, part, place), store.unets)


def read_module(store: ModelStore, cls: Any, part: Part, place: Place) -> Any:
    """One of diffusers' models, with its weights."""
    with _configured(part), torch.device("meta"):
        module: nn.Module = cls.from_config(part.config)
    return _filled(store, module, part, place)


def _read_text_encoder(store: ModelStore, part: Part, style: Style) -> TextEncoder:
    # ComfyUI keeps text encoders in half precision, whatever the file holds, and so must we.
    place = Place(store.device, torch.float32, through=torch.float16)
    with _configured(part):
        empty = made_on_meta(part.config, style)
    encoder = use_one_dnn(_filled(store, empty, part, place))
    embeddings = encoder.text_model.embeddings
    # A buffer that no file holds.
    positions = torch.arange(encoder.text_model.config.max_position_embeddings)
    embeddings.position_ids = nn.Buffer(positions[None].to(store.device), persistent=False)
    return encoder


def _filled(store: ModelStore, module: M, part: Part, place: Place) -> M:
    weights = module.state_dict()
    store.make_room(sum(each.numel() for each in weights.values()) * place.dtype.itemsize)
    with _configured(part):
        sources = part.locate(weights)
    return part.weights.fill(module, sources, place)


@contextmanager
def _configured(part: Part) -> Iterator[None]:
    """Tells a configuration that makes no model from what else can go wrong."""
    try:
        yield
    except _BAD_CONFIGURATION as error:
        raise CheckpointUnavailable(
            f"the configuration of {part.weights.name} makes no model: {first_line(error)}"
        ) from error


def load_vae(store: ModelStore, name: str) -> Vae:
    """A VAE that lies by itself; raises CheckpointUnavailable."""
    path = store.models.path(VAES, name)
    part = look_at_vae(path)
    place = Place(store.device, torch.float32)
    autoencoder = store.made(
        ("vae", identity_of(path)), lambda: read_module(store, AutoencoderKL, part, place)
    )
    return Vae(autoencoder)
