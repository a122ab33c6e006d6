"""Tiny ControlNets with random weights, and files of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from diffusers import ControlNetModel
from safetensors.torch import save_file

from engine.diffusion.loading.layout import unet_names
from training import make_tiny


def tiny_control_net(seed: int, *, std: float = 0.3, **sizes: Any) -> Any:
    """For the tiny checkpoint, but for `sizes`.

    What training starts from zero is filled here, so that it acts: with weights spread by `std`.
    """
    shared = ("block_out_channels", "down_block_types", "cross_attention_dim", "attention_head_dim")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network: Any = ControlNetModel(**({name: make_tiny.UNET[name] for name in shared} | sizes))
        ends = [*network.controlnet_down_blocks, network.controlnet_mid_block]
        for layer in (*ends, network.controlnet_cond_embedding.conv_out):
            layer.weight.normal_(std=std)
    return network.eval().requires_grad_(False)


def write_in_ldm_keys(network: Any, out: Path, prefix: str = "control_model.") -> None:
    """One file in Stable Diffusion's key layout, with its sizes beside it."""
    state = network.state_dict()
    config = {**network.config, "up_block_types": ["" for _ in network.config.block_out_channels]}
    names = unet_names([key for key in state if not key.startswith("controlnet_")], config)
    names |= {key: _own_key(key) for key in state if key.startswith("controlnet_")}
    tensors = {names[key]: each for key, each in state.items()}
    save_file({f"{prefix}{key}": each.contiguous() for key, each in tensors.items()}, out)
    write_sizes(network, out)


def write_sizes(network: Any, out: Path) -> None:
    folder = out.with_suffix(".config")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(network.config)))


def _own_key(key: str) -> str:
    new = re.sub(r"controlnet_down_blocks\.(\d+)", r"zero_convs.\1.0", key)
    new = new.replace("controlnet_mid_block", "middle_block_out.0")
    new = new.replace("controlnet_cond_embedding.conv_in", "input_hint_block.0")
    new = new.replace("controlnet_cond_embedding.conv_out", "input_hint_block.14")
    return re.sub(
        r"controlnet_cond_embedding\.blocks\.(\d)",
        lambda at: f"input_hint_block.{2 * int(at[1]) + 2}",
        new,
    )
