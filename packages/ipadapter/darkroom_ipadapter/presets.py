"""Finds the files of the unified loader's presets by the names of published files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.errors import EngineError

# Each preset has the ends of file names for Stable Diffusion 1 and for XL, without the suffix. The
# dots match any character, because some names have dashes and other names have underscores.
_FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "LIGHT - SD1.5 only (low strength)": (("sd15.light.v11", "sd15.light"), ()),
    "STANDARD (medium strength)": (("ip.adapter.sd15",), ("ip.adapter.sdxl.vit.h",)),
    "VIT-G (medium strength)": (("sd15.vit.g",), ("ip.adapter.sdxl",)),
    "PLUS (high strength)": (("ip.adapter.plus.sd15",), ("plus.sdxl.vit.h",)),
    "PLUS FACE (portraits)": (("plus.face.sd15",), ("plus.face.sdxl.vit.h",)),
}
PRESETS = tuple(_FILES)
_VIT_G = r"ViT.bigG.14.*39B.b160k|ipadapter.*sdxl|sdxl.*model"
_VIT_H = r"ViT.H.14.*s32B.b79K|ipadapter.*sd15|sd1.?5.*model"
_SUFFIX = r"\.safetensors$"


def adapter_file(preset: str, names: Sequence[str], *, is_xl: bool) -> str:
    """Return the adapter's file among `names`. Raises EngineError if there is no such file."""
    ends = _FILES[preset][is_xl]
    if not ends:
        raise EngineError(f"the preset {preset} does not support Stable Diffusion XL")
    found = [name for end in ends for name in _matching(f"(?:{end})", names)]
    return _first(found, "ipadapter/", f"{ends[0].replace('.', '-')}.safetensors")


def clip_vision_file(preset: str, names: Sequence[str]) -> str:
    """Return the preset's CLIP vision file. Raises EngineError if there is no such file."""
    is_g = preset.startswith("VIT-G")
    found = _matching(f"(?:{_VIT_G if is_g else _VIT_H})", names)
    shown = "CLIP-ViT-bigG-14-laion2B-39B-b160k" if is_g else "CLIP-ViT-H-14-laion2B-s32B-b79K"
    return _first(found, "clip_vision/", f"{shown}.safetensors")


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if re.search(pattern + _SUFFIX, name, re.IGNORECASE)]


def _first(found: Sequence[str], folder: str, wanted: str) -> str:
    if not found:
        raise EngineError(f"{folder} has no file for this preset: put {wanted} there")
    return found[0]
