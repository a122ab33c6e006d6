"""The side of a picture where a request names none."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import CheckpointUnavailable
from engine.graph.families import Family, checkpoint_family
from engine.graph.models_folder import FOLDER_MARK
from engine.graph.safetensors_header import read_header

_USUAL_SIDE = 512
_SIDE_OF_XL = 1024


def usual_side(checkpoint: Path) -> int:
    """1024 px for Stable Diffusion XL and its refiner, else 512."""
    return _SIDE_OF_XL if _is_xl(checkpoint) else _USUAL_SIDE


def _is_xl(checkpoint: Path) -> bool:
    """What cannot be read is refused where it is loaded, not for its size."""
    try:
        if checkpoint.is_dir():
            index = json.loads((checkpoint / FOLDER_MARK).read_text())
            return "XL" in str(index.get("_class_name"))
        return checkpoint_family(read_header(checkpoint)) in (Family.SDXL, Family.SDXL_REFINER)
    except (CheckpointUnavailable, OSError, ValueError, AttributeError):
        return False
