"""Flux.1. What is usual is that of dev."""

from __future__ import annotations

from engine.errors import CheckpointUnavailable
from engine.families.family import Defaults, Family, Traits, Work
from engine.graph.safetensors_header import Header

_SIGNS = ("double_blocks.0.img_attn.qkv.weight", "single_transformer_blocks.0.proj_mlp.weight")
_OTHERS = ("double_stream_modulation_img.", "distilled_guidance_layer.")
"""Names in the networks of Flux.2 and Chroma."""
_INPUTS = ("img_in.weight", "x_embedder.weight")
_WIDTH = 64
"""A patch of 2 x 2 cells of a latent of 16 channels."""


def _is_network(header: Header, prefix: str) -> bool:
    if any(header.has(f"{prefix}{each}") for each in _OTHERS):
        return False
    if not any(f"{prefix}{sign}" in header.shapes for sign in _SIGNS):
        return False
    shapes = (header.shapes.get(f"{prefix}{name}", ()) for name in _INPUTS)
    shape = next(filter(None, shapes), ())
    if len(shape) == 2 and shape[1] != _WIDTH:
        raise CheckpointUnavailable(
            f"{header.name} is a Flux for filling, edges or depth, which is not supported yet"
        )
    return True


FLUX = Traits(
    family=Family.FLUX,
    title="Flux.1",
    place="flux:Flux",
    text_encoders=("text_encoders.",),
    is_network=_is_network,
    pipeline="Flux",
    clip_type="flux",
    clip_files=2,
    latent_channels=16,
    text_width=4096,
    least_tokens=256,
    work=Work(call=10.0, text=8.0, load=4.0, text_load=2.0),
    side=1024,
    defaults=Defaults(steps=20, cfg_scale=1.0, sampler_name="Euler", scheduler="Simple"),
    is_told_guidance=True,
)
