"""Tiny ControlNets with random weights, files of them, and random inputs for them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from diffusers import ControlNetModel
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.loading.layout import unet_names
from training import make_tiny


def tiny_control_net(seed: int, *, std: float = 0.3, **sizes: Any) -> Any:
    """A ControlNet for the tiny checkpoint; `sizes` replace parts of its configuration.

    The layers that training starts from zero have random weights with the standard deviation `std`
    here, so that they have an effect.
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
    """Write one file with the keys of Stable Diffusion, and its configuration beside it."""
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


def picture(seed: int, height: int = 64, width: int = 64) -> Tensor:
    return torch.rand((1, height, width, 3), generator=torch.Generator().manual_seed(seed))


def text(seed: int) -> Conditioning:
    generator = torch.Generator().manual_seed(seed)
    return (Condition(torch.randn((1, 77, 64), generator=generator)),)


def noise() -> Tensor:
    return torch.randn((1, 4, 8, 8), generator=torch.Generator().manual_seed(3))
