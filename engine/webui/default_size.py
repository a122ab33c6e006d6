"""The size of a picture whose request names none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from engine.families.family import Family, Traits
from engine.families.recognition import family_at
from engine.families.table import FAMILIES, TRAITS
from engine.graph.models_folder import CHECKPOINTS, FOLDER_MARK, ModelsFolder

_DEFAULT_SIDE = 512


def default_side(models: ModelsFolder, checkpoint: str) -> int:
    """Width and height in pixels.

    Raises CheckpointUnavailable, ModelsUnavailable.
    """
    traits = checkpoint_traits(models, checkpoint)
    return traits.side if traits else _DEFAULT_SIDE


def checkpoint_traits(models: ModelsFolder, checkpoint: str) -> Traits | None:
    """What is known of the family of a checkpoint, as `checkpoint_family` tells it."""
    family = checkpoint_family(models, checkpoint)
    return TRAITS[family] if family else None


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
            signs = ((each.pipeline, each.family) for each in FAMILIES)
            return next((family for sign, family in signs if sign and sign in name), None)
        return family_at(CHECKPOINTS, checkpoint)
    except (OSError, ValueError, AttributeError):
        return None
