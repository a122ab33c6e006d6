"""Tiny ControlNets with random weights, files of them, and random inputs for them."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    ControlNetModel,
    ControlNetUnionModel,
    FluxControlNetModel,
    ZImageControlNetModel,
)
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.families.flux import Flux
from engine.diffusion.loading.layout import unet_names
from training import make_tiny
from training.single_file import packed
from training.tiny_transformers import FLUX, Z_IMAGE


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


def tiny_union(seed: int, types: int = 3) -> Any:
    """A union of ControlNets for the tiny checkpoint, as diffusers has it."""
    shared = ("block_out_channels", "down_block_types", "cross_attention_dim", "attention_head_dim")
    sizes = {name: make_tiny.UNET[name] for name in shared}
    width = sizes["block_out_channels"][0]
    own: dict[str, Any] = {
        "num_control_type": types,
        "num_trans_channel": width,
        "num_proj_channel": width,
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        own |= {"addition_time_embed_dim": 256}
        own |= {"conditioning_embedding_out_channels": (16, 32, 96, 256)}
        network: Any = ControlNetUnionModel(**sizes, **own)
        for name, weight in network.named_parameters():
            if weight.ndim > 1 and ("controlnet_" in name or "spatial" in name):
                weight.normal_(std=0.3)
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


def tiny_flux_control_net(seed: int, **sizes: Any) -> Any:
    """A ControlNet for the tiny Flux of `training.tiny_transformers`; `sizes` are its own."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers warns about its own class
        torch.manual_seed(seed)
        network: Any = FluxControlNetModel(**{**FLUX, **sizes})
        for name, weight in network.named_parameters():
            if weight.ndim > 1 and ("controlnet_" in name or "hint" in name):
                weight.normal_(std=2.0 if "mode_embedder" in name else 0.3)
    return network.eval().requires_grad_(False)


def write_in_xlabs_keys(network: Any, out: Path) -> None:
    """Write a ControlNet of Flux with pixels as its hint as XLabs writes it."""
    state = network.state_dict()
    names = {
        "controlnet_x_embedder": "pos_embed_input",
        "input_hint_block.conv_in": "input_hint_block.0",
        "input_hint_block.conv_out": "input_hint_block.14",
        **{f"input_hint_block.blocks.{n}": f"input_hint_block.{2 * n + 2}" for n in range(6)},
    }
    own, rest = {}, {}
    for key, each in state.items():
        stem, _, end = key.rpartition(".")
        if stem in names:
            own[f"{names[stem]}.{end}"] = each
        elif key.startswith("controlnet_"):
            own[key] = each
        else:
            rest[key] = each
    own |= packed(rest, Flux().key_map(list(rest), {}))
    save_file({key: each.contiguous() for key, each in own.items()}, out)


def tiny_z_image_control_net(seed: int, version: str) -> Any:
    """A ControlNet for the tiny Z-Image: version `1`, or `2.0` or `2.1` with 33 channels."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        sizes = ("dim", "n_refiner_layers", "n_heads", "n_kv_heads")
        network: Any = ZImageControlNetModel(
            control_layers_places=[0, 5, 10, 15, 20, 25] if version == "1" else [*range(0, 30, 2)],
            control_in_dim=16 if version == "1" else 33,
            add_control_noise_refiner=None if version == "1" else "control_noise_refiner",
            **{name: Z_IMAGE[name] for name in sizes},
        )
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.2)
        if version == "2.0":
            for block in network.control_noise_refiner:
                block.after_proj.weight.zero_()
                block.after_proj.bias.zero_()
    return network.eval().requires_grad_(False)
