"""Tiny IP-Adapters with random weights, in the layout in which they are published."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.vision.operations import cross_attentions
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.workflows import TINY
from tests.support.vision.clip_vision import CONFIG

PLAIN, PLUS = "ip-adapter_sd15.safetensors", "ip-adapter-plus_sd15.safetensors"
TEXT_WIDTH, SEEN_WIDTH, PATCH_WIDTH = 64, CONFIG["projection_dim"], CONFIG["hidden_size"]


def write_adapters(folder: Path, tiny_root: Path) -> None:
    """Write a plain adapter and a "plus" for the tiny checkpoint."""
    folder.mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = _layer_tensors(tiny_root)
        save_file(_plain_tensors() | layers, folder / PLAIN)
        save_file(_plus_tensors() | layers, folder / PLUS)


def _layer_tensors(tiny_root: Path) -> dict[str, Tensor]:
    store = ModelStore(ModelsFolder(tiny_root), torch.device("cpu"), 2**30)
    layers = cross_attentions(load_checkpoint(store, TINY).model.unet)
    return {
        f"ip_adapter.{2 * number + 1}.to_{which}_ip.weight": torch.randn(layer.width, TEXT_WIDTH)
        * 0.3
        for number, layer in enumerate(layers)
        for which in "kv"
    }


def _plain_tensors() -> dict[str, Tensor]:
    return {
        "image_proj.proj.weight": torch.randn(4 * TEXT_WIDTH, SEEN_WIDTH),
        "image_proj.proj.bias": torch.randn(4 * TEXT_WIDTH),
        "image_proj.norm.weight": torch.ones(TEXT_WIDTH),
        "image_proj.norm.bias": torch.zeros(TEXT_WIDTH),
    }


def _plus_tensors(width: int = 32, heads: int = 2) -> dict[str, Tensor]:
    inner = 64 * heads
    sizes = {
        "latents": (1, 16, width),
        "proj_in.weight": (width, PATCH_WIDTH),
        "proj_in.bias": (width,),
        "proj_out.weight": (TEXT_WIDTH, width),
        "proj_out.bias": (TEXT_WIDTH,),
        "norm_out.weight": (TEXT_WIDTH,),
        "norm_out.bias": (TEXT_WIDTH,),
    }
    for number in range(4):
        layer = f"layers.{number}"
        sizes |= {
            f"{layer}.0.{norm}.{part}": (width,)
            for norm in ("norm1", "norm2")
            for part in ("weight", "bias")
        }
        sizes |= {f"{layer}.1.0.{part}": (width,) for part in ("weight", "bias")}
        sizes |= {
            f"{layer}.0.to_q.weight": (inner, width),
            f"{layer}.0.to_kv.weight": (2 * inner, width),
            f"{layer}.0.to_out.weight": (width, inner),
            f"{layer}.1.1.weight": (4 * width, width),
            f"{layer}.1.3.weight": (width, 4 * width),
        }
    return {f"image_proj.{name}": torch.randn(size) * 0.4 for name, size in sizes.items()}
