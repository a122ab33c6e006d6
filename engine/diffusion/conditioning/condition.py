"""Conditionings: encoded texts, with the area, the steps and the strength of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.control.control_net import Control
from engine.diffusion.images.latents import Mask
from engine.diffusion.vision.unclip import UnclipImage


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of a latent, in cells: a cell is 8 x 8 pixels."""

    height: int
    width: int
    y: int
    x: int


@dataclass(frozen=True, slots=True)
class AreaPercentage:
    """A rectangle in fractions (0..1) of a latent's height and width."""

    height: float
    width: float
    y: float
    x: float

    def on(self, height: int, width: int) -> Area:
        """The rectangle on a latent of that size, rounded to cells, at least one by one."""
        return Area(
            max(1, round(self.height * height)),
            max(1, round(self.width * width)),
            round(self.y * height),
            round(self.x * width),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """One encoded text, and what limits it."""

    tokens: Tensor
    """(1, tokens, width) float32."""
    pooled: Tensor | None = None
    """(1, width) float32 of the whole text, for models that take one (SDXL)."""
    size_conditioning: tuple[float, ...] | None = None
    """SDXL's original size, crop and target size (the refiner's: aesthetic score), in pixels and in
    the order of diffusers' `time_ids`. None: those of the latent.
    """
    strength: float = 1.0
    area: Area | AreaPercentage | None = None
    """The area that it applies to; None: everywhere."""
    mask: Mask | None = None
    """Multiplies `strength` in each place; of any size."""
    set_area_to_bounds: bool = False
    """The bounding box of the mask replaces `area`."""
    sigma_range: tuple[float, float] = (float("inf"), 0.0)
    """The largest and the smallest sigma that it applies at."""
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The same in percent (0..1) of the timesteps: see `NoiseLevels.percent_to_sigma`."""
    controls: tuple[Control, ...] = ()
    """The ControlNets that are applied with it."""
    unclip: tuple[UnclipImage, ...] = ()
    """Images that a model of unCLIP is told beside the text."""
    class_labels: Tensor | None = None
    """(1, width): what is made of them once the seed of a sampler is known."""
    guidance: float | None = None
    """The scale of guidance that a distilled model is told; None: what is usual for it."""

    def concatenated(self, other: Condition) -> Condition:
        """The tokens of both, one after the other."""
        return replace(self, tokens=torch.cat([self.tokens, other.tokens], dim=1))

    def averaged(self, other: Condition, weight: float) -> Condition:
        """The mean with the other, where `weight` (0..1) is the weight of this one.

        The tokens of the other are cut, or padded with zeros, to the length of this one.
        """
        length = self.tokens.shape[1]
        missing = max(0, length - other.tokens.shape[1])
        padded = functional.pad(other.tokens[:, :length], (0, 0, 0, missing))
        pooled = other.pooled if self.pooled is None else self.pooled
        if pooled is not None and other.pooled is not None:
            pooled = pooled * weight + other.pooled * (1.0 - weight)
        return replace(self, tokens=self.tokens * weight + padded * (1.0 - weight), pooled=pooled)

    def zeroed_out(self) -> Condition:
        """A condition of the same shape whose values are 0."""
        pooled = None if self.pooled is None else torch.zeros_like(self.pooled)
        return replace(self, tokens=torch.zeros_like(self.tokens), pooled=pooled)

    def with_area(self, area: Area | AreaPercentage, strength: float) -> Condition:
        """The condition limited to an area, with that strength."""
        return replace(self, area=area, strength=strength, set_area_to_bounds=False)

    def with_mask(self, mask: Mask, strength: float, *, set_area_to_bounds: bool) -> Condition:
        """The condition weighted by a mask."""
        return replace(self, mask=mask * strength, set_area_to_bounds=set_area_to_bounds)

    def with_strength(self, strength: float) -> Condition:
        return replace(self, strength=strength)

    def with_percent_range(self, start: float, end: float) -> Condition:
        """The condition limited to a range of the timesteps, in percent (0..1)."""
        return replace(self, percent_range=(start, end))


Conditioning: TypeAlias = tuple[Condition, ...]
"""Conditions that apply together: x0 is the mean of their x0s, weighted by strength."""
