"""The size of a picture whose request names none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from engine.graph.families import Family, family_at
from engine.graph.models_folder import CHECKPOINTS, FOLDER_MARK, ModelsFolder

_DEFAULT_SIDE = 512
_XL_SIDE = 1024


def default_side(models: ModelsFolder, checkpoint: str) -> int:
    """Width and height in pixels: 1024 for Stable Diffusion XL and its refiner, else 512.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    path = models.path(CHECKPOINTS, checkpoint)
    is_xl = models.reads.read(("xl", path), partial(_is_xl, path))
    return _XL_SIDE if is_xl else _DEFAULT_SIDE


def _is_xl(checkpoint: Path) -> bool:
    """Also false for what cannot be read: loading it raises the error that says why."""
    try:
        if checkpoint.is_dir():
            index = json.loads((checkpoint / FOLDER_MARK).read_text())
            return "XL" in str(index.get("_class_name"))
        return family_at(CHECKPOINTS, checkpoint) in (Family.SDXL, Family.SDXL_REFINER)
    except (OSError, ValueError, AttributeError):
        return False
