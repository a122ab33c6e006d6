"""Z-Image."""

from __future__ import annotations

from engine.families.family import Family, Traits
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
    side=1024,
)
