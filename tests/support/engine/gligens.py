"""Files of tiny GLIGENs with random weights, with the names of the published file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.diffusion.conditioning.gligen import Gligen

WIDTHS = {
    "input_blocks.1": 32,
    "input_blocks.2": 32,
    "middle_block.1": 64,
    "output_blocks.3": 32,
    "output_blocks.4": 32,
    "output_blocks.5": 32,
}
"""The widths of the transformers of the tiny checkpoint, by their blocks."""


def tiny_gligen(seed: int, widths: list[int] | None = None, text_width: int = 64) -> Gligen:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        sizes = widths or list(WIDTHS.values())
        network = Gligen(sizes, text_width=text_width, token_width=64)
        for name, weight in network.named_parameters():
            if "alpha" in name:
                weight.fill_(1.0)
            elif weight.ndim > 1 or "null" in name:
                weight.normal_(std=0.3)
    return network.eval().requires_grad_(False)


def write_gligen(network: Gligen, out: Path) -> None:
    blocks = list(WIDTHS)
    found = {}
    for name, weight in network.state_dict().items():
        key = name
        if name.startswith("fusers."):
            _, number, rest = name.split(".", 2)
            key = f"{blocks[int(number)]}.1.transformer_blocks.0.fuser.{rest}"
            key = key.replace("middle_block.1.1.", "middle_block.1.")
        found[key] = weight.clone()
    out.parent.mkdir(parents=True, exist_ok=True)
    # The order of the keys of a file has no meaning.
    save_file(dict(sorted(found.items(), reverse=True)), out)
