"""Writes models of diffusers and transformers as one file with the keys of Stable Diffusion.

The file cannot hold the configurations, so these are written to `name.config/` beside the file. The
engine reads this folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.families.family_lookup import unet_family
from engine.diffusion.loading import layout
from engine.diffusion.loading.layout import KeyMap
from engine.families.family import UNET, VAE, Family
from engine.families.table import TRAITS

State = Mapping[str, Tensor]
SCHEDULER: dict[str, Any] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
}
"""Stable Diffusion's noise levels, as diffusers configures them."""


@dataclass(frozen=True, slots=True)
class Component:
    """One model of a checkpoint: its configuration, and its weights by the library's names."""

    config: Mapping[str, Any]
    state: State


def write_single_file(
    out: Path,
    *,
    unet: Component,
    vae: Component,
    text_encoders: Sequence[Component],
    scheduler: Mapping[str, Any],
    family: Family = Family.SD1,
) -> None:
    """Write the weights in half precision to `out` and the configurations to `name.config/`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    configs = configs_of(
        unet=unet, vae=vae, text_encoders=text_encoders, scheduler=scheduler, family=family
    )
    for name, config in configs.items():
        write_json(out.with_suffix(".config") / name, config)
    tensors = packed(unet.state, layout.unet(unet.state, unet.config, UNET)) | _vae_keys(vae)
    for component, prefix in zip(text_encoders, TRAITS[family].text_encoders, strict=True):
        tensors |= _text_keys(component.state, prefix)
    half = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    # The file is renamed when it is complete, so that no reader reads an incomplete file.
    unfinished = out.with_suffix(".unfinished")
    save_file(half, unfinished, metadata={"format": "pt"})
    unfinished.replace(out)


def configs_of(
    *,
    unet: Component,
    vae: Component,
    text_encoders: Sequence[Component],
    scheduler: Mapping[str, Any],
    family: Family,
) -> dict[str, dict[str, Any]]:
    """Return the configurations of a checkpoint, by their paths in a diffusers folder."""
    configs: dict[str, dict[str, Any]] = {
        "unet/config.json": {"_class_name": "UNet2DConditionModel", **unet.config},
        "vae/config.json": {"_class_name": "AutoencoderKL", **vae.config},
        "scheduler/scheduler_config.json": {"_class_name": "EulerDiscreteScheduler", **scheduler},
    }
    for component, (folder, _) in zip(text_encoders, unet_family(family).encoders, strict=True):
        configs[f"{folder}/config.json"] = {"model_type": "clip_text_model", **component.config}
    return configs


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def packed(state: State, key_map: KeyMap) -> dict[str, Tensor]:
    """Return the tensors by the keys of the file, which joins some weights in one tensor."""
    thirds: dict[str, list[Tensor]] = {}
    rows: dict[str, dict[int, Tensor]] = {}
    found = {}
    for name, tensor in state.items():
        stored = key_map[name]
        if stored.third is not None:
            thirds.setdefault(stored.key, [tensor] * 3)[stored.third] = tensor
        elif stored.rows is not None:
            rows.setdefault(stored.key, {})[stored.rows[0]] = tensor
        elif stored.swapped:
            found[stored.key] = torch.cat(tensor.chunk(2)[::-1])
        else:
            found[stored.key] = tensor.T if stored.transposed else tensor
    found |= {key: torch.cat([part[at] for at in sorted(part)]) for key, part in rows.items()}
    return found | {key: torch.cat(tensors) for key, tensors in thirds.items()}


def _vae_keys(vae: Component) -> dict[str, Tensor]:
    found = packed(vae.state, layout.vae(vae.state, vae.config, VAE))
    # The single file stores attention projections as 1x1 convolutions.
    return {
        key: tensor[:, :, None, None] if "attn_1" in key and tensor.ndim == 2 else tensor
        for key, tensor in found.items()
    }


def _text_keys(state: State, prefix: str) -> dict[str, Tensor]:
    named = {
        name if name.startswith("text_") else f"text_model.{name}": tensor
        for name, tensor in state.items()
    }
    is_open_clip = prefix.endswith("model.")
    keys = {f"{prefix}{name}" for name in named}
    key_map = layout.open_clip(named, prefix) if is_open_clip else layout.clip(named, keys, prefix)
    return packed(named, key_map)
