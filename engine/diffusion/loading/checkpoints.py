"""Loads checkpoints: makes models of files and folders and keeps them in the store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel

from engine.diffusion.families.loading import load_whole, whole_family
from engine.diffusion.families.lookup import unet_family
from engine.diffusion.images.latent_previews import with_preview
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoint_info import Component, inspect, inspect_vae
from engine.diffusion.loading.modules import read_clip_encoder, read_module
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.unets import dtype_of, prepared
from engine.diffusion.loading.weights import LoadTarget
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise_levels import stable_diffusion
from engine.diffusion.text.encoding import Clip
from engine.diffusion.text.family_texts import FamilyTexts
from engine.diffusion.text.textual_inversion import Embeddings
from engine.graph.models_folder import CHECKPOINTS, VAES


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The models of one checkpoint."""

    name: str
    model: Model
    clip: Clip | FamilyTexts
    vae: Vae


def load_checkpoint(store: ModelStore, name: str) -> Checkpoint:
    """The models of a checkpoint, from memory or from disk; raises CheckpointUnavailable."""
    path = store.models.path(CHECKPOINTS, name)
    identity = store.identity(path)
    if family := store.inspect_once(whole_family, path, identity):
        return Checkpoint(name, *load_whole(store, path, family, label=name))
    info = store.inspect_once(inspect, path, identity)
    unet = store.get_or_create(("unet", identity), lambda: _read_unet(store, info.unet), label=name)
    encoders = tuple(
        store.get_or_create(
            ("text", at, identity), partial(read_clip_encoder, store, component, spec)
        )
        for at, (component, spec) in enumerate(info.text_encoders)
    )
    autoencoder: Any = store.get_or_create(
        ("vae", identity),
        lambda: read_module(
            store, AutoencoderKL, info.vae, LoadTarget(store.device, torch.float32)
        ),
    )
    return Checkpoint(
        name,
        Model(
            unet,
            unet_family(info.family),
            latent_scale=autoencoder.config.scaling_factor,
            levels=stable_diffusion(zero_terminal=info.has_zero_terminal_snr),
            prediction=info.prediction,
        ),
        Clip(encoders, store.encoding_cache, Embeddings(store)),
        Vae(autoencoder),
    )


def _read_unet(store: ModelStore, component: Component) -> Any:
    # Only the UNet gains from half precision: the other models are small, or overflow in it.
    target = LoadTarget(store.device, dtype_of(store.unets, store.device))
    return prepared(read_module(store, UNet2DConditionModel, component, target), store.unets)


def load_vae(store: ModelStore, name: str) -> Vae:
    """The VAE of that name in the folder of VAEs; raises CheckpointUnavailable."""
    path = store.models.path(VAES, name)
    identity = store.identity(path)
    component = store.inspect_once(inspect_vae, path, identity)
    target = LoadTarget(store.device, torch.float32)
    autoencoder = store.get_or_create(
        ("vae", identity), lambda: read_module(store, AutoencoderKL, component, target)
    )
    return with_preview(store, Vae(autoencoder))
