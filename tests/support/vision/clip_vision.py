"""Tiny CLIP vision models with random weights, files of them, and a checkpoint of unCLIP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from engine.diffusion.loading import layout
from engine.families.family import Family
from training.make_tiny import with_large_weights
from training.single_file import packed
from training.tiny_families import UNCLIP, UNCLIP_WIDTH, write_family

VISION = "tiny-vision.safetensors"
OPEN = "tiny-open.safetensors"
UNCLIP_NAME = "unclip.safetensors"
SIDE = 32
CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "projection_dim": UNCLIP_WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": SIDE,
    "hidden_act": "gelu",
}


def tiny_vision(**sizes: Any) -> Any:
    """Return a vision model with weights in half precision; `sizes` replace parts of `CONFIG`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        network = CLIPVisionModelWithProjection(CLIPVisionConfig(**CONFIG | sizes))
        with_large_weights(network, seed=7)
        for each in network.parameters():
            each.copy_(each.half().float())
    return network.eval().requires_grad_(False)


def open_keys(network: Any, prefix: str = "visual.") -> dict[str, Tensor]:
    """Return its weights in open_clip's layout."""
    state = network.state_dict()
    found = packed(state, layout.open_clip_vision(state, prefix))
    return {key: each.half().contiguous() for key, each in found.items()}


def write_vision(folder: Path) -> Any:
    """Write a model in both layouts, with its configuration beside each file; returns the model."""
    folder.mkdir(parents=True)
    network = tiny_vision()
    save_file(network.state_dict(), folder / VISION)
    save_file(open_keys(network), folder / OPEN)
    for name in (VISION, OPEN):
        write_config(folder / name)
    return network


def write_config(path: Path, inner: str = "", **sizes: Any) -> None:
    config = path.with_suffix(".config") / inner / "config.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(CONFIG | sizes))


def write_unclip(root: Path) -> Any:
    """Write a checkpoint of unCLIP as a file with its vision model, and as a diffusers folder;
    returns the vision model.
    """
    single = root / "checkpoints" / UNCLIP_NAME
    write_family(Family.SD2, single, root / "checkpoints" / "unclip-folder", UNCLIP)
    network = tiny_vision()
    save_file(load_file(single) | open_keys(network, "embedder.model.visual."), single)
    write_config(single, "image_encoder")
    return network
