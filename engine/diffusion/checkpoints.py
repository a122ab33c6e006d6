"""Checkpoints: from a file to the three models, kept in memory while there is room.

Read offline, from single files in the Stable Diffusion 1.x key layout or from diffusers folders.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from engine.batcher import Request
from engine.diffusion import single_file
from engine.diffusion.memory import memory_checked
from engine.diffusion.model import Model
from engine.diffusion.single_file import Parts
from engine.diffusion.text import Clip, load_tokenizer
from engine.diffusion.vae import Vae
from engine.errors import CheckpointUnavailable
from engine.models_folder import CHECKPOINTS, ModelsFolder

__all__ = ["Checkpoint", "CheckpointStore", "Clip", "Load", "Model", "Vae"]

_Identity = tuple[str, int, int]
"""Path, size and time of change: a file that was replaced is another checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The models of one checkpoint."""

    name: str
    model: Model
    clip: Clip
    vae: Vae
    size_bytes: int


class CheckpointStore:
    """Checkpoints in memory, least recently used first, within `cache_bytes`; the newest stays."""

    def __init__(self, models: ModelsFolder, device: torch.device, cache_bytes: int) -> None:
        self._models = models
        self._device = device
        self._cache_bytes = cache_bytes
        self._tokenizer = load_tokenizer()
        self._loaded: OrderedDict[_Identity, Checkpoint] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """What is in memory."""
        return tuple(checkpoint.name for checkpoint in list(self._loaded.values()))

    def get(self, name: str) -> Checkpoint:
        """The checkpoint, loaded if need be; raises CheckpointUnavailable."""
        path = self._models.path(CHECKPOINTS, name)
        identity = _identity(path)
        if identity not in self._loaded:
            self._loaded[identity] = self._load(name, path)
        self._loaded.move_to_end(identity)
        self._evict()
        return self._loaded[identity]

    def _evict(self) -> None:
        while len(self._loaded) > 1 and self._size_bytes() > self._cache_bytes:
            self._loaded.popitem(last=False)

    def _size_bytes(self) -> int:
        return sum(checkpoint.size_bytes for checkpoint in self._loaded.values())

    def _load(self, name: str, path: Path) -> Checkpoint:
        parts = _read_folder(path) if path.is_dir() else single_file.read(path)
        # The noise predictor alone gains from half precision; the rest is small or overflows in it.
        half = torch.float16 if self._device.type == "cuda" else torch.float32
        unet = _placed(parts.unet, self._device, half)
        encoder = _placed(_rounded_to_half(parts.text_encoder), self._device, torch.float32)
        autoencoder = _placed(parts.vae, self._device, torch.float32)
        return Checkpoint(
            name,
            Model(unet, latent_scale=parts.vae.config.scaling_factor),
            Clip(encoder, self._tokenizer),
            Vae(autoencoder),
            size_bytes=sum(_size_bytes(part) for part in (unet, encoder, autoencoder)),
        )


@dataclass(slots=True, eq=False)
class Load(Request):
    """A checkpoint to be brought into memory; one load serves all who wait for it."""

    store: CheckpointStore
    name: str
    rows: int = 1

    @property
    def key(self) -> Hashable:
        return "load", self.name

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Checkpoint]:
        with memory_checked():
            return [request.store.get(request.name) for request in requests]


def _identity(path: Path) -> _Identity:
    state = path.stat()
    return str(path), state.st_size, state.st_mtime_ns


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


def _size_bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
