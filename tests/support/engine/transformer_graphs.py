"""Graphs of transformers for the tiny models of `training.tiny_transformers`, at 64x64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from engine.reports import Finished, LatentReady
from tests.support.engine.workflows import Watched, node


def z_image_graph(
    text: str = "a red square", *, negative: str = "", shift: float = 3.0, **sampler: Any
) -> dict[str, Any]:
    """The usual graph of Z-Image; keywords go to the sampler."""
    return {
        "1": node("UNETLoader", unet_name="tiny-z-image.safetensors", weight_dtype="default"),
        "2": node("CLIPLoader", clip_name="tiny-qwen3.safetensors", type="lumina2"),
        "3": node("VAELoader", vae_name="tiny-ae.safetensors"),
        "4": node("CLIPTextEncode", text=text, clip=["2", 0]),
        "5": node("CLIPTextEncode", text=negative, clip=["2", 0]),
        "7": node("ModelSamplingAuraFlow", model=["1", 0], shift=shift),
        **_sampled(sampler, model=["7", 0]),
    }


def flux_graph(
    text: str = "a red square",
    *,
    negative: str = "",
    guidance: float = 3.5,
    name: str = "dev",
    **sampler: Any,
) -> dict[str, Any]:
    """The usual graph of Flux, with the shift of its size; keywords go to the sampler."""
    size = {"width": 64, "height": 64}
    return {
        "1": node("UNETLoader", unet_name=f"tiny-flux-{name}.safetensors", weight_dtype="default"),
        "2": node(
            "DualCLIPLoader",
            clip_name1="tiny-t5xxl.safetensors",
            clip_name2="tiny-clip-l.safetensors",
            type="flux",
        ),
        "3": node("VAELoader", vae_name="tiny-flux-ae.safetensors"),
        "12": node("CLIPTextEncode", text=text, clip=["2", 0]),
        "4": node("FluxGuidance", conditioning=["12", 0], guidance=guidance),
        "5": node("CLIPTextEncode", text=negative, clip=["2", 0]),
        "7": node("ModelSamplingFlux", model=["1", 0], max_shift=1.15, base_shift=0.5, **size),
        **_sampled({"cfg": 1.0, **sampler}, model=["7", 0]),
    }


def _sampled(sampler: dict[str, Any], *, model: list[Any]) -> dict[str, Any]:
    inputs = {
        "seed": 5,
        "steps": 4,
        "cfg": 3.0,
        "sampler_name": "euler",
        "scheduler": "simple",
        "denoise": 1.0,
        "model": model,
        "positive": ["4", 0],
        "negative": ["5", 0],
        "latent_image": ["6", 0],
    }
    return {
        "6": node("EmptySD3LatentImage", width=64, height=64, batch_size=1),
        "8": node("KSampler", **(inputs | sampler)),
        "9": node("VAEDecode", samples=["8", 0], vae=["3", 0]),
        "10": node("SaveImage", images=["9", 0], filename_prefix="x"),
    }


def saving_latent(graph: dict[str, Any], *, keeps: tuple[str, ...] = ()) -> dict[str, Any]:
    """The graph, which saves its latent and no image. `keeps` are nodes that it still needs."""
    unused = {"3", "9", "10"} - {*keeps}
    kept = {name: each for name, each in graph.items() if name not in unused}
    return {**kept, "11": node("SaveLatent", samples=["8", 0], filename_prefix="x")}


def latent_of(watched: Watched) -> Tensor:
    """The latent that a graph saved, as the network has it."""
    end = watched.wait()
    assert isinstance(end, Finished), end
    (found,) = (event for event in watched.events if isinstance(event, LatentReady))
    return (torch.from_numpy(found.samples) - 0.1159) * 0.3611


def decibels(found: Tensor, wanted: Tensor) -> float:
    """The peak signal-to-noise ratio of latents."""
    mean = float((found - wanted).square().mean())
    return 10 * math.log10(float(wanted.abs().max()) ** 2 / max(mean, 1e-30))
