"""The family of a checkpoint, and the defaults of a diffusion request that depend on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from engine.families.family import Family, Traits
from engine.families.recognition import family_at
from engine.families.table import TRAITS
from engine.graph import names
from engine.graph.models_folder import CHECKPOINTS
from engine.webui.model_names import Models, ServerModels
from engine.webui.parameters import DiffusionParameters

_DEFAULT_SIDE = 512


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    width: int
    height: int
    steps: int | None
    """None means the default of the request's `compatibility`."""
    cfg_scale: float
    sampler_name: str
    scheduler: str

    @property
    def node_names(self) -> tuple[str, str]:
        """The sampler and the scheduler by their names in a workflow."""
        return names.resolve(self.sampler_name, self.scheduler)


def request_defaults(traits: Traits | None) -> RequestDefaults:
    """Return the defaults for checkpoints of a family; None means that the family is not known."""
    members = DiffusionParameters.model_fields
    values = {each: members[each].default for each in ("cfg_scale", "sampler_name", "scheduler")}
    side = traits.side if traits else _DEFAULT_SIDE
    own = asdict(traits.defaults) if traits else {}
    values |= {name: each for name, each in own.items() if each is not None}
    return RequestDefaults(**{"width": side, "height": side, "steps": None, **values})


def default_side(models: Models, checkpoint: str) -> int:
    """Return the default width and height in pixels, which are equal.

    Raises CheckpointUnavailable if the checkpoint is not listed.
    """
    traits = checkpoint_traits(models, checkpoint)
    return traits.side if traits else _DEFAULT_SIDE


def checkpoint_traits(models: Models, checkpoint: str) -> Traits | None:
    """Return the traits of the family of a checkpoint, or None if the family is not known."""
    family = checkpoint_family(models, checkpoint)
    return TRAITS[family] if family else None


def checkpoint_family(models: Models, checkpoint: str) -> Family | None:
    """Return the family of a checkpoint, or None if its files do not show the family.

    Stable Diffusion 1 and 2 are not recognized if the checkpoint is a folder. The families of a
    server's checkpoints are never known. Raises CheckpointUnavailable if the checkpoint is not
    listed.
    """
    if isinstance(models, ServerModels):
        return None
    path = models.path(CHECKPOINTS, checkpoint)
    return family_at(models, CHECKPOINTS, path)
