"""Z-Image. What is usual is that of Z-Image-Turbo."""

from __future__ import annotations

from engine.families.family import Defaults, Family, Traits, Work
from engine.graph.safetensors_header import Header

_SIGN = "cap_pad_token"


def _is_network(header: Header, prefix: str) -> bool:
    return f"{prefix}{_SIGN}" in header.shapes


Z_IMAGE = Traits(
    family=Family.Z_IMAGE,
    title="Z-Image",
    place="z_image:ZImage",
    text_encoders=("text_encoders.",),
    is_network=_is_network,
    pipeline="ZImage",
    clip_type="lumina2",
    clip_files=1,
    latent_channels=16,
    text_width=2560,
    work=Work(call=8.0, text=6.0, load=2.0, text_load=1.5),
    side=1024,
    defaults=Defaults(steps=8, cfg_scale=1.0, sampler_name="RES Multistep", scheduler="Simple"),
)
