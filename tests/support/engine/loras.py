"""LoRAs for tiny networks, and files of transformers that have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Z_IMAGE, FLUX = "tiny-z-image.safetensors", "tiny-flux-dev.safetensors"
FOLDERS = {Z_IMAGE: "diffusion_models", FLUX: "unet"}
PLAIN = "diffusion_model."
RANK, ALPHA = 2, 4.0
"""Their ratio is a power of two, so it rounds alike wherever it is multiplied."""
Pairs = dict[str, tuple[Tensor, Tensor]]
"""The matrices down and up, by the name of the layer."""


def state_of(root: Path, network: str) -> dict[str, Tensor]:
    return load_file(root / FOLDERS[network] / network)


def pairs_for(state: Mapping[str, Tensor], words: tuple[str, ...] = ("",), seed: int = 0) -> Pairs:
    """Matrices for the layers whose names have one of these words."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key.removesuffix(".weight"): (
            torch.randn(RANK, weight.shape[1], generator=generator) * 0.2,
            torch.randn(len(weight), RANK, generator=generator) * 0.2,
        )
        for key, weight in state.items()
        if weight.ndim == 2 and key.endswith(".weight") and any(word in key for word in words)
    }


def layer_pairs(module: nn.Module, pattern: str, *, seed: int, rank: int = RANK) -> Pairs:
    """Matrices for the linear layers and convolutions in whose names the pattern is found."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and re.search(pattern, name):
            out, *rest = layer.weight.shape
            down = torch.randn(rank, *rest, generator=generator)
            up = torch.randn(out, rank, *[1] * (len(rest) - 1), generator=generator)
            pairs[name] = down * 0.1, up * 0.1
    return pairs


def product(pair: tuple[Tensor, Tensor]) -> Tensor:
    down, up = pair
    return ALPHA / RANK * up @ down


def with_alpha(pairs: Pairs, name: Callable[[str], str], alpha: float = ALPHA) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for layer, (down, up) in pairs.items():
        key = name(layer)
        found |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
        found[f"{key}.alpha"] = torch.tensor(alpha)
    return found


def as_peft(pairs: Pairs, prefix: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for layer, (down, up) in pairs.items():
        found[f"{prefix}{layer}.lora_A.weight"] = down
        found[f"{prefix}{layer}.lora_B.weight"] = up * (ALPHA / RANK)
    return found


def flat(prefix: str) -> Callable[[str], str]:
    return lambda layer: prefix + layer.replace(".", "_")


def written(root: Path, network: str, state: Mapping[str, Tensor], name: str) -> str:
    save_file(
        {key: each.contiguous() for key, each in state.items()}, root / FOLDERS[network] / name
    )
    return name
