"""What guides the denoising: encoded texts, each with where, when and how much it counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import Mask

if TYPE_CHECKING:
    from engine.diffusion.control.control_net import Control


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of a latent, in its cells."""

    height: int
    width: int
    y: int
    x: int


@dataclass(frozen=True, slots=True)
class AreaShare:
    """A rectangle in shares (0..1) of the sides of whatever latent it comes to."""

    height: float
    width: float
    y: float
    x: float

    def on(self, height: int, width: int) -> Area:
        """The nearest cells, at least one."""
        return Area(
            max(1, round(self.height * height)),
            max(1, round(self.width * width)),
            round(self.y * height),
            round(self.x * width),
        )


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
    area: Area | AreaShare | None = None
    """Where it counts; None: everywhere."""
    mask: Mask | None = None
    """How much it counts where, beside `strength`; in any size."""
    keeps_to_mask: bool = False
    """The model sees the mask's bounding box alone, which takes the place of `area`."""
    sigmas: tuple[float, float] = (float("inf"), 0.0)
    """From which level down to which it counts."""
    shares: tuple[float, float] = (0.0, 1.0)
    """The same in shares of the training steps, counted from the most noise."""
    controls: tuple[Control, ...] = ()
    """The ControlNets that act beside it."""

    def followed_by(self, other: Condition) -> Condition:
        """Both texts, one after the other."""
        return replace(self, tokens=torch.cat([self.tokens, other.tokens], dim=1))

    def mixed_with(self, other: Condition, share: float) -> Condition:
        """`share` of this one and the rest of the other, which is cut or filled up with zeros."""
        length = self.tokens.shape[1]
        missing = max(0, length - other.tokens.shape[1])
        filled = functional.pad(other.tokens[:, :length], (0, 0, 0, missing))
        pooled = other.pooled if self.pooled is None else self.pooled
        if pooled is not None and other.pooled is not None:
            pooled = pooled * share + other.pooled * (1.0 - share)
        return replace(self, tokens=self.tokens * share + filled * (1.0 - share), pooled=pooled)

    def zeroed(self) -> Condition:
        """Of the same shape without a meaning."""
        pooled = None if self.pooled is None else torch.zeros_like(self.pooled)
        return replace(self, tokens=torch.zeros_like(self.tokens), pooled=pooled)

    def within(self, area: Area | AreaShare, strength: float) -> Condition:
        """In an area alone."""
        return replace(self, area=area, strength=strength, keeps_to_mask=False)

    def masked(self, mask: Mask, strength: float, *, keeps_to_mask: bool) -> Condition:
        """As much as a mask says."""
        return replace(self, mask=mask * strength, keeps_to_mask=keeps_to_mask)

    def of_strength(self, strength: float) -> Condition:
        return replace(self, strength=strength)

    def between(self, start: float, end: float) -> Condition:
        """From one share of the training steps to the other."""
        return replace(self, shares=(start, end))


Conditioning: TypeAlias = tuple[Condition, ...]
"""Several count side by side: the mean of their x0, each weighted by its strength."""
