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
    return _XL_SIDE if is_xl(models, checkpoint) else _DEFAULT_SIDE


def is_xl(models: ModelsFolder, checkpoint: str) -> bool:
    """Whether a checkpoint is of Stable Diffusion XL or its refiner.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    return checkpoint_family(models, checkpoint) in (Family.SDXL, Family.SDXL_REFINER)


def checkpoint_family(models: ModelsFolder, checkpoint: str) -> Family | None:
    """The family of a checkpoint; None where it cannot be told.

    Of one that is a folder it is told only whether it is SDXL.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    path = models.path(CHECKPOINTS, checkpoint)
    found: Family | None = models.reads.read(("family", path), partial(_family_of, path))
    return found


def _family_of(checkpoint: Path) -> Family | None:
    """Also None for what cannot be read: loading it raises the error that says why."""
    try:
        if checkpoint.is_dir():
            index = json.loads((checkpoint / FOLDER_MARK).read_text())
            return Family.SDXL if "XL" in str(index.get("_class_name")) else None
        return family_at(CHECKPOINTS, checkpoint)
    except (OSError, ValueError, AttributeError):
        return None
