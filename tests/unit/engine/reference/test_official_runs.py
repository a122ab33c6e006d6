"""ComfyUI's own graphs for SD1, SD2 and SDXL run, on tiny weights of random numbers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, T2IAdapter
from safetensors.torch import save_file

from engine.diffusion.images.upscale_models import Compact
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.comfyui.official import examples, renamed
from tests.support.engine.control_nets import tiny_control_net
from tests.support.engine.gligens import tiny_gligen, write_gligen
from tests.support.engine.latents import recorded
from tests.support.engine.workflows import TINY
from tests.support.uploads import png
from tests.support.vision.clip_vision import UNCLIP_NAME, tiny_vision, write_config, write_unclip
from tests.unit.engine.nodes.test_official_graphs import LACKING
from training.make_tiny import UNET, VAE
from training.single_file import write_json
from training.tiny_families import FAMILIES, write_family

NAMES = sorted(examples().keys() - LACKING.keys())
_CHANGED = "mid_block_attentions_0_transformer_blocks_0_attn1_to_q"
_WIDTHS = {TINY: 64, "sdxl.safetensors": 32}
"""Of what the LoRAs change."""
_POOLED = 32
"""The width of the text that the tiny SDXL takes whole, and of the pictures in its place."""


@pytest.fixture(scope="module")
def catalogue(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    root = tmp_path_factory.mktemp("official")
    shutil.copytree(tiny_root / "checkpoints", root / "checkpoints")
    for family in FAMILIES:
        file, folder = root / f"checkpoints/{family}.safetensors", root / f"folders/{family}"
        write_family(family, file, folder)
    for kind in ("loras", "vae", "hypernetworks", "upscale_models", "clip_vision"):
        (root / kind).mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        _write(root)
    return Catalogue(ModelsFolder(root))


def _write(root: Path) -> None:
    for checkpoint, width in _WIDTHS.items():
        pair = {"down": torch.randn(2, width), "up": torch.randn(width, 2)}
        named = {f"lora_unet_{_CHANGED}.lora_{at}.weight": each for at, each in pair.items()}
        save_file(named, root / "loras" / checkpoint)
    vae: Any = AutoencoderKL(**VAE)
    save_file(vae.state_dict(), root / "vae" / "one.safetensors")
    write_json(root / "vae" / "one.config" / "config.json", dict(vae.config))
    write_unclip(root)
    save_file(
        tiny_vision(projection_dim=_POOLED).state_dict(), root / "clip_vision" / "one.safetensors"
    )
    write_config(root / "clip_vision" / "one.safetensors", projection_dim=_POOLED)
    layer = {"linear.0.weight": torch.randn(64, 64) * 0.1, "linear.0.bias": torch.zeros(64)}
    torch.save({64: [layer, layer]}, root / "hypernetworks" / "one.pt")
    tiny_control_net(1).save_pretrained(root / "controlnet" / "net")
    adapter: Any = T2IAdapter(3, UNET["block_out_channels"], 2)
    save_file(adapter.state_dict(), root / "controlnet" / "adapter.safetensors")
    write_gligen(tiny_gligen(1), root / "gligen" / "one.safetensors")
    network = Compact(features=8, depth=3, scale=3)
    save_file(network.state_dict(), root / "upscale_models" / "one.safetensors")


def _family(name: str) -> str:
    if "unclip" in name:
        return UNCLIP_NAME
    if "refiner" in name:
        return f"{Family.SDXL_REFINER}.safetensors"
    if "xl" in name.lower():
        return f"{Family.SDXL}.safetensors"
    return f"{Family.SD2}.safetensors" if name.startswith(("v2-", "wd-")) else TINY


def _small(graph: dict[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """The graph with tiny models: 64 x 64, one step, and all areas at the corner."""
    checkpoints = {
        node_id: _family(node["inputs"]["ckpt_name"])
        for node_id, node in graph.items()
        if node["class_type"] in {"CheckpointLoaderSimple", "unCLIPCheckpointLoader"}
    }
    own = next(iter(checkpoints.values()))
    adapter = any("t2i" in str(node["inputs"].get("control_net_name")) for node in graph.values())
    control = "adapter" if adapter else "net/diffusion_pytorch_model"
    small = renamed(graph, catalogue, _models(own, control))
    for node_id, name in checkpoints.items():
        small[node_id]["inputs"]["ckpt_name"] = name
    for node in small.values():
        node["inputs"] |= {at: 0 for at in ("x", "y") if at in node["inputs"]}
    return small


def _models(checkpoint: str, control: str) -> Mapping[str, str]:
    return {
        "checkpoints": checkpoint,
        "loras": checkpoint if checkpoint in _WIDTHS else TINY,
        "vae": "one.safetensors",
        "hypernetworks": "one.pt",
        "controlnet": f"{control}.safetensors",
        "upscale_models": "one.safetensors",
        "gligen": "one.safetensors",
        "clip_vision": "one.safetensors",
    }


def test_they_run_on_tiny_weights(catalogue: Catalogue) -> None:
    graphs = [_small(examples()[name], catalogue) for name in NAMES]
    names = {
        node["inputs"]["image"]
        for graph in graphs
        for node in graph.values()
        if node["class_type"] == "LoadImage"
    }
    runs = recorded(graphs, catalogue, dict.fromkeys(names, png(size=(64, 64))))
    without = [name for name, run in zip(NAMES, runs, strict=True) if not run.images]
    assert without == []
