"""What a request that does not say it takes by the family of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from engine.errors import CheckpointUnavailable
from engine.families.family import Family, Traits
from engine.families.recognition import family_at
from engine.families.table import TRAITS
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from engine.webui.model_names import listed_name
from engine.webui.parameters import DiffusionParameters

_DEFAULT_SIDE = 512


def with_family_defaults(
    parameters: DiffusionParameters,
    body: Mapping[str, Any],
    models: ModelsFolder,
    *,
    default: str | None,
) -> DiffusionParameters:
    """The parameters of a body, with what is usual for the checkpoint in the place of what the body
    leaves open. They are recorded with the job. `default`: the checkpoint of one that names none.

    Raises ModelsUnavailable.
    """
    asked = parameters.checkpoint or default
    try:
        name = listed_name(asked or "", models.names(CHECKPOINTS))
        traits = checkpoint_traits(models, name)
    except (CheckpointUnavailable, ValueError):
        return parameters  # compiling it raises the error that says why
    usual = {} if traits is None else asdict(traits.defaults)
    given = parameters.model_fields_set - {"steps"}
    if body.get("steps") is not None:
        given |= {"steps"}
    if given & {"sampler_name", "scheduler"}:
        given |= {"sampler_name", "scheduler"}  # a sampler chooses its schedule
    taken = {name: each for name, each in usual.items() if each is not None and name not in given}
    return parameters.model_copy(update=taken) if taken else parameters


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
    return models.reads.read(("family", path), partial(family_at, CHECKPOINTS, path))
