"""Checkpoints: from a file to the three models, kept in memory while there is room.

Read offline, from single files in the Stable Diffusion 1.x key layout or from diffusers folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.diffusion import single_file
from engine.diffusion.model import Model
from engine.diffusion.single_file import Parts
from engine.diffusion.store import ModelStore, identity_of
from engine.diffusion.text import Clip, load_tokenizer
from engine.diffusion.vae import Vae
from engine.errors import CheckpointUnavailable
from engine.models_folder import CHECKPOINTS

__all__ = ["Checkpoint", "Clip", "Model", "Vae", "load_checkpoint"]


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
    read = cache(lambda: _read_folder(path) if path.is_dir() else single_file.read(path))
    # The noise predictor alone gains from half precision; the rest is small or overflows in it.
    half = torch.float16 if store.device.type == "cuda" else torch.float32
    unet = store.made(
        ("unet", identity), lambda: _placed(read().unet, store.device, half), label=name
    )
    clip = store.made(("clip", identity), lambda: _clip(read().text_encoder, store.device))
    autoencoder: Any = store.made(
        ("vae", identity), lambda: _placed(read().vae, store.device, torch.float32)
    )
    model = Model(unet, latent_scale=autoencoder.config.scaling_factor)
    return Checkpoint(name, model, clip, Vae(autoencoder))


def _clip(encoder: nn.Module, device: torch.device) -> Clip:
    rounded = _placed(_rounded_to_half(encoder), device, torch.float32)
    return Clip(rounded, load_tokenizer())


def _read_folder(path: Path) -> Parts:
    """A diffusers folder of Stable Diffusion 1.x."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextModel

    options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True}
    try:
        return Parts(
            unet=UNet2DConditionModel.from_pretrained(path / "unet", **options),
            vae=AutoencoderKL.from_pretrained(path / "vae", **options),
            text_encoder=CLIPTextModel.from_pretrained(path / "text_encoder", **options),
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointUnavailable(f"{path.name} cannot be read: {error}") from error


def _rounded_to_half(encoder: nn.Module) -> nn.Module:
    """ComfyUI keeps text encoders in half precision, whatever the file holds, and so must we."""
    return nn.Module.to(encoder, torch.float16)


def _placed(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    # Not diffusers' own `to`, which warns of every cast.
    nn.Module.to(module, device=device, dtype=dtype)
    return module.eval().requires_grad_(False)
