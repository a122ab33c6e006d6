"""What guides the denoising: encoded texts, each with where, when and how much it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

ALWAYS = (float("inf"), 0.0)


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of a latent, in its cells."""

    height: int
    width: int
    y: int
    x: int


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """One encoded text. `dataclasses.replace` makes another of it."""

    tokens: Tensor
    """(1, tokens, width) float32."""
    pooled: Tensor | None = None
    """(1, width) float32 of the whole text, for models that take one (SDXL)."""
    sizes: tuple[float, ...] | None = None
    """SDXL's micro-conditioning, in the order of diffusers' `time_ids`; None: the model's own."""
    strength: float = 1.0
    area: Area | None = None
    """Where it counts; None: everywhere."""
    sigmas: tuple[float, float] = field(default=ALWAYS)
    """From which level down to which it counts."""

    def counts_at(self, sigma: float) -> bool:
        most, least = self.sigmas
        return least <= sigma <= most


Conditioning: TypeAlias = tuple[Condition, ...]
"""Several count side by side: the mean of their x0, each weighted by its strength."""
