"""The weights that the compared graphs load besides the small checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.engine import parity
from tests.support.engine.control_nets import tiny_control_net, write_in_ldm_keys

LORA = "parity_lora.safetensors"
CONTROL_NET = "parity_control.safetensors"


def write_weights(root: Path, checkpoint: Path) -> None:
    """Write a LoRA, embeddings and a ControlNet below `root`, the same ones each time."""
    parity.write_lora(root / "loras" / LORA, checkpoint)
    _write_control_net(root / "controlnet" / CONTROL_NET)
    _write_embeddings(root / "embeddings")


def digests_of(root: Path) -> dict[str, str]:
    """The SHA-256 of each of these files by its path below `root`."""
    kinds = ("loras", "controlnet", "embeddings")
    paths = sorted(path for kind in kinds for path in (root / kind).rglob("*.safetensors"))
    return {path.relative_to(root).as_posix(): parity.digest(path) for path in paths}


def _write_control_net(out: Path) -> None:
    out.parent.mkdir()
    network = tiny_control_net(
        3,
        std=0.05,
        block_out_channels=(320, 640),
        layers_per_block=1,
        cross_attention_dim=768,
        attention_head_dim=8,
    )
    write_in_ldm_keys(network, out)


def _write_embeddings(folder: Path) -> None:
    random = torch.Generator().manual_seed(1)

    def vectors(count: int, width: int) -> torch.Tensor:
        return torch.randn(count, width, generator=random) * 0.5

    (folder / "folder").mkdir(parents=True)
    save_file({"emb_params": vectors(3, 768)}, folder / "three.safetensors")
    save_file({"emb_params": vectors(1, 768)}, folder / "folder" / "one.safetensors")
    save_file({"emb_params": vectors(2, 1024)}, folder / "large.safetensors")
