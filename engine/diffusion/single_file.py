"""Single-file checkpoints in the Stable Diffusion 1.x key layout, without network.

What the file does not say (numbers of heads, activation) comes from `name.config/` beside it, else
from `configs/sd15`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.loaders.single_file_utils import (
    convert_ldm_unet_checkpoint,
    convert_ldm_vae_checkpoint,
)
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from engine.errors import CheckpointUnavailable
from engine.models_folder import CONFIG_SUFFIX

_SD15 = Path(__file__).parent / "configs" / "sd15"
_UNET = "model.diffusion_model."
_VAE = "first_stage_model."
_CLIP = "cond_stage_model.transformer."
_FOREIGN = {
    "conditioner.embedders.": "SDXL",
    "cond_stage_model.model.": "Stable Diffusion 2",
    "model.diffusion_model.double_blocks.": "Flux",
    "model.diffusion_model.joint_blocks.": "Stable Diffusion 3",
    "lora_": "a LoRA",
}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The three models of a checkpoint, as diffusers and transformers have them."""

    unet: Any
    vae: Any
    text_encoder: Any


def read(path: Path) -> Parts:
    """The models of a file; raises CheckpointUnavailable, saying what is wrong with it."""
    if path.suffix != ".safetensors":
        raise CheckpointUnavailable(
            f"{path.name}: only .safetensors is read, pickled files can run code"
        )
    tensors = _tensors(path)
    _require_sd1(path.name, tensors)
    configs = _configs(path)
    try:
        return Parts(
            unet=_unet(tensors, configs / "unet"),
            vae=_vae(tensors, configs / "vae"),
            text_encoder=_text_encoder(tensors, configs / "text_encoder"),
        )
    except (RuntimeError, KeyError, IndexError) as error:
        raise CheckpointUnavailable(
            f"{path.name} has other sizes than {configs.name} says: {_first_line(error)}"
        ) from error


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointUnavailable(f"{path.name} is gone") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointUnavailable(f"{path.name} is damaged: {_first_line(error)}") from error


def _require_sd1(name: str, tensors: Mapping[str, Tensor]) -> None:
    for prefix, kind in _FOREIGN.items():
        if any(key.startswith(prefix) for key in tensors):
            raise CheckpointUnavailable(f"{name} is {kind}, which is not supported yet")
    for prefix in (_UNET, _VAE, _CLIP):
        if not any(key.startswith(prefix) for key in tensors):
            raise CheckpointUnavailable(
                f"{name} is no Stable Diffusion checkpoint: it has no {prefix}*"
            )


def _configs(path: Path) -> Path:
    own = path.with_suffix(CONFIG_SUFFIX)
    configs = own if own.is_dir() else _SD15
    scheduler = _json(configs / "scheduler" / "scheduler_config.json")
    if scheduler.get("prediction_type", "epsilon") != "epsilon":
        raise CheckpointUnavailable(
            f"{path.name}: only models that predict the noise are supported yet"
        )
    return configs


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointUnavailable(f"{path} cannot be read: {_first_line(error)}") from error
    return found


def _unet(tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    config = _json(folder / "config.json")
    own = {key: value for key, value in tensors.items() if key.startswith(_UNET)}
    with torch.device("meta"):
        unet: nn.Module = UNet2DConditionModel.from_config(config)
    return _filled(unet, convert_ldm_unet_checkpoint(own, config))


def _vae(tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    config = _json(folder / "config.json")
    own = {key: value for key, value in tensors.items() if key.startswith(_VAE)}
    with torch.device("meta"):
        vae: nn.Module = AutoencoderKL.from_config(config)
    return _filled(vae, convert_ldm_vae_checkpoint(own, config))


def _text_encoder(tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    config = CLIPTextConfig(**_json(folder / "config.json"))
    own = {
        key.removeprefix(_CLIP).removeprefix("text_model."): value
        for key, value in tensors.items()
        if key.startswith(_CLIP) and not key.endswith("position_ids")
    }
    with torch.device("meta"):
        encoder = CLIPTextModel(config)
    # A buffer that no file holds.
    positions = torch.arange(config.max_position_embeddings)[None]
    encoder.embeddings.position_ids = nn.Buffer(positions, persistent=False)
    return _filled(encoder, own)


def _filled(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The weights put in place without first filling the module with random ones."""
    module.load_state_dict(state, strict=True, assign=True)
    return module


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
