"""Writes models of diffusers and transformers as one file in Stable Diffusion 1.x' key layout.

What that file cannot say lies beside it in `name.config/`, where the engine looks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the three models: its configuration and its weights by the library's own names."""

    config: Mapping[str, Any]
    state: State


def write_single_file(
    out: Path, *, unet: Part, vae: Part, text_encoder: Part, scheduler: Mapping[str, Any]
) -> None:
    """Write the weights in half precision to `out` and the configurations to `name.config/`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    configs = {
        "unet": {"_class_name": "UNet2DConditionModel", **unet.config},
        "vae": {"_class_name": "AutoencoderKL", **vae.config},
        "text_encoder": {"model_type": "clip_text_model", **text_encoder.config},
    }
    for name, config in configs.items():
        _write_json(out.with_suffix(".config") / name / "config.json", config)
    _write_json(
        out.with_suffix(".config") / "scheduler" / "scheduler_config.json",
        {"_class_name": "EulerDiscreteScheduler", **scheduler},
    )
    tensors = {**_unet_keys(unet), **_vae_keys(vae), **_text_keys(text_encoder.state)}
    half = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    # Renamed into place, so that a watcher of the folder never sees half a file.
    unfinished = out.with_suffix(".unfinished")
    save_file(half, unfinished, metadata={"format": "pt"})
    unfinished.replace(out)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _unet_keys(unet: Part) -> dict[str, Tensor]:
    blocks = _unet_blocks(unet.config)
    layers = {
        "norm1": "in_layers.0",
        "conv1": "in_layers.2",
        "norm2": "out_layers.0",
        "conv2": "out_layers.3",
        "time_emb_proj": "emb_layers.1",
        "conv_shortcut": "skip_connection",
    }
    renamed = {}
    for name, tensor in unet.state.items():
        block = max((each for each in blocks if name.startswith(f"{each}.")), key=len)
        rest = name.removeprefix(f"{block}.")
        if ".resnets." in block:
            layer, _, end = rest.partition(".")
            rest = f"{layers[layer]}.{end}"
        renamed[f"model.diffusion_model.{blocks[block]}.{rest}"] = tensor
    return renamed


def _unet_blocks(config: Mapping[str, Any]) -> dict[str, str]:
    blocks = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "conv_in": "input_blocks.0.0",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
        "mid_block.resnets.0": "middle_block.0",
        "mid_block.attentions.0": "middle_block.1",
        "mid_block.resnets.1": "middle_block.2",
    }
    depth = config["layers_per_block"] + 1
    for level, up_type in enumerate(config["up_block_types"]):
        for layer in range(depth):
            down, up = 1 + level * depth + layer, level * depth + layer
            blocks[f"down_blocks.{level}.resnets.{layer}"] = f"input_blocks.{down}.0"
            blocks[f"down_blocks.{level}.attentions.{layer}"] = f"input_blocks.{down}.1"
            blocks[f"up_blocks.{level}.resnets.{layer}"] = f"output_blocks.{up}.0"
            blocks[f"up_blocks.{level}.attentions.{layer}"] = f"output_blocks.{up}.1"
        down_end, up_end = (level + 1) * depth, level * depth + depth - 1
        after = 2 if "CrossAttn" in up_type else 1
        blocks[f"down_blocks.{level}.downsamplers.0.conv"] = f"input_blocks.{down_end}.0.op"
        blocks[f"up_blocks.{level}.upsamplers.0.conv"] = f"output_blocks.{up_end}.{after}.conv"
    return blocks


def _vae_keys(vae: Part) -> dict[str, Tensor]:
    top = len(vae.config["block_out_channels"]) - 1
    renamed = {}
    for name, tensor in vae.state.items():
        new = _vae_key(name, top)
        # The single file has the attention's projections as 1x1 convolutions.
        is_projection = "attn_1" in new and new.endswith("weight") and tensor.ndim == 2
        renamed[f"first_stage_model.{new}"] = tensor[:, :, None, None] if is_projection else tensor
    return renamed


def _vae_key(name: str, top: int) -> str:
    new = re.sub(r"encoder\.down_blocks\.(\d)\.resnets\.(\d)", r"encoder.down.\1.block.\2", name)
    new = re.sub(r"encoder\.down_blocks\.(\d)\.downsamplers\.0", r"encoder.down.\1.downsample", new)
    new = re.sub(
        r"decoder\.up_blocks\.(\d)\.resnets\.(\d)",
        lambda at: f"decoder.up.{top - int(at[1])}.block.{at[2]}",
        new,
    )
    new = re.sub(
        r"decoder\.up_blocks\.(\d)\.upsamplers\.0",
        lambda at: f"decoder.up.{top - int(at[1])}.upsample",
        new,
    )
    new = re.sub(r"mid_block\.resnets\.(\d)", lambda at: f"mid.block_{int(at[1]) + 1}", new)
    new = new.replace("mid_block.attentions.0", "mid.attn_1")
    new = new.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
    attention = {
        "group_norm": "norm",
        "to_q": "q",
        "to_k": "k",
        "to_v": "v",
        "to_out.0": "proj_out",
    }
    for old, short in attention.items():
        new = new.replace(f"attn_1.{old}", f"attn_1.{short}")
    return new


def _text_keys(state: State) -> dict[str, Tensor]:
    prefix = "cond_stage_model.transformer.text_model."
    return {f"{prefix}{name.removeprefix('text_model.')}": tensor for name, tensor in state.items()}
