"""What a sampler is put together from, where a graph does that itself."""

from __future__ import annotations

from dataclasses import dataclass

from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.guidance_rules import Third
from engine.diffusion.model import Model


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a seed; it is added at the start, or the latent has it already."""

    seed: int
    is_added: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Guider:
    """A model and what guides it."""

    model: Model
    positive: Conditioning
    negative: Conditioning
    cfg: float
    third: Third | None = None
