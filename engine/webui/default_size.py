"""The size of a picture whose request names none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from engine.graph.families import Family, family_at
from engine.graph.models_folder import CHECKPOINTS, FOLDER_MARK, ModelsFolder

_DEFAULT_SIDE = 512
_XL_SIDE = 1024
_PIPELINES = {"XL": Family.SDXL, "ZImage": Family.Z_IMAGE, "Flux": Family.FLUX}
"""What the names of diffusers' pipelines for a family have in them."""


def default_side(models: ModelsFolder, checkpoint: str) -> int:
    """Width and height in pixels: 512 for Stable Diffusion 1 and 2, else 1024.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    family = checkpoint_family(models, checkpoint)
    is_large = family is not None and family not in (Family.SD1, Family.SD2)
    return _XL_SIDE if is_large else _DEFAULT_SIDE


def is_xl(models: ModelsFolder, checkpoint: str) -> bool:
    """Whether a checkpoint is of Stable Diffusion XL or its refiner.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    return checkpoint_family(models, checkpoint) in (Family.SDXL, Family.SDXL_REFINER)


def checkpoint_family(models: ModelsFolder, checkpoint: str) -> Family | None:
    """The family of a checkpoint; None where it cannot be told.

    Stable Diffusion 1 and 2 are not told of one that is a folder.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    path = models.path(CHECKPOINTS, checkpoint)
    found: Family | None = models.reads.read(("family", path), partial(_family_of, path))
    return found


def _family_of(checkpoint: Path) -> Family | None:
    """Also None for what cannot be read: loading it raises the error that says why."""
    try:
        if checkpoint.is_dir():
            name = str(json.loads((checkpoint / FOLDER_MARK).read_text()).get("_class_name"))
            return next((each for sign, each in _PIPELINES.items() if sign in name), None)
        return family_at(CHECKPOINTS, checkpoint)
    except (OSError, ValueError, AttributeError):
        return None
