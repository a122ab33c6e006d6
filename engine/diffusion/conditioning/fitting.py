"""Fits conditions to latents of a known size: the window, the weight and the sigmas of each.

As in Bar-Tal et al. 2023 (arXiv:2302.08113), x0 is the weighted mean of the x0s of all windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TypeAlias

import torch
from torch import Tensor

from engine.diffusion.conditioning.condition import (
    Area,
    AreaPercentage,
    Condition,
    Conditioning,
    with_shared_controls,
    with_shared_grounding,
)
from engine.diffusion.images.compositing import ramp
from engine.diffusion.inpainting import fitted_mask
from engine.diffusion.samplers.noise_levels import NoiseLevels

_FEATHER = 8
_MIN_SIDE = 8
"""The smallest side of the window around a mask, in cells."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedCondition:
    """A condition, fitted to latents of a known size."""

    condition: Condition
    area: Area | None
    """The area inside the latent. None: the whole latent."""
    weight: Tensor | None
    """The weight in the area, (batch or 1, 1, height, width). None: 1 everywhere."""
    sigma_range: tuple[float, float]
    """The largest and the smallest sigma at which the condition applies."""
    is_negative: bool = False
    """Whether the condition belongs to the negative conditioning."""

    def applies_at(self, sigma: float) -> bool:
        sigma_max, sigma_min = self.sigma_range
        return sigma_min <= sigma <= sigma_max

    def window(self, whole: Tensor) -> Tensor:
        """Return the part of the latent `whole` where the condition applies."""
        return whole if self.area is None else _window(whole, self.area)


FittedConditioning: TypeAlias = tuple[FittedCondition, ...]


def fitted_conditionings(
    positive: Conditioning,
    negative: Conditioning,
    like: Tensor,
    levels: NoiseLevels,
    *,
    more: Sequence[Conditioning] = (),
    more_share: bool = True,
) -> tuple[FittedConditioning, ...]:
    """Fit conditionings to latents of the shape of `like` (batch, channels, h, w).

    For each area of a conditioning, the other conditionings get a condition with the same area,
    because guidance compares estimates of the same window. The negative conditioning and, if
    `more_share`, those in `more` get the ControlNets and the boxes of the positive conditioning
    that apply to all. Raises ValueError for an area outside the latent.
    """
    sharing = (negative, *more) if more_share else (negative,)
    others: list[Conditioning] = [
        with_shared_grounding(positive, with_shared_controls(positive, each)) for each in sharing
    ]
    if not more_share:
        others += more
    found = [[_fitted(each, like, levels) for each in one] for one in (positive, *others)]
    found[1] = [replace(each, is_negative=True) for each in found[1]]
    for ones, targets in permutations(found, 2):
        _add_counterparts(ones, targets)
    return tuple(map(tuple, found))


def _fitted(condition: Condition, like: Tensor, levels: NoiseLevels) -> FittedCondition:
    mask = None if condition.mask is None else fitted_mask(condition.mask, like)
    area = _area_of(condition, mask, like)
    start, end = (levels.percent_to_sigma(percent) for percent in condition.percent_range)
    sigma_max, sigma_min = condition.sigma_range
    return FittedCondition(
        condition,
        area,
        _weight(condition, mask, area, like),
        (min(sigma_max, start), max(sigma_min, end)),
    )


def _area_of(condition: Condition, mask: Tensor | None, like: Tensor) -> Area | None:
    height, width = like.shape[2:]
    area = condition.area
    if mask is not None and condition.set_area_to_bounds:
        area = _bounds(mask)
    elif isinstance(area, AreaPercentage):
        area = area.on(height, width)
    if area is None:
        return None
    inside = replace(
        area, height=min(area.height, height - area.y), width=min(area.width, width - area.x)
    )
    if inside.height <= 0 or inside.width <= 0:
        raise ValueError("the area of a conditioning lies outside of the image")
    return inside


def _bounds(mask: Tensor) -> Area:
    rows, columns = mask.abs().amax(dim=(0, 1)).nonzero(as_tuple=True)
    if not len(rows):
        return Area(_MIN_SIDE, _MIN_SIDE, 0, 0)
    top, left = int(rows.min()), int(columns.min())
    height, width = int(rows.max()) - top + 1, int(columns.max()) - left + 1
    return Area(max(_MIN_SIDE, height), max(_MIN_SIDE, width), top, left)


def _weight(
    condition: Condition, mask: Tensor | None, area: Area | None, like: Tensor
) -> Tensor | None:
    if mask is not None:
        window = mask if area is None else _window(mask, area)
        return window * condition.strength
    if area is not None:
        return _feathered(area, like) * condition.strength
    if condition.strength != 1.0:
        return torch.full((1, 1, *like.shape[2:]), condition.strength, device=like.device)
    return None


def _feathered(area: Area, like: Tensor) -> Tensor:
    """Return a weight of 1 that falls towards the area's edges, except at the latent's edges."""
    height, width = like.shape[2:]
    down = _side(area.height, first=area.y > 0, last=area.y + area.height < height)
    across = _side(area.width, first=area.x > 0, last=area.x + area.width < width)
    return (down[:, None] * across)[None, None].to(like.device)


def _side(length: int, *, first: bool, last: bool) -> Tensor:
    return ramp(length, min(_FEATHER, length // 4), first=first, last=last)


def _window(whole: Tensor, area: Area) -> Tensor:
    return whole[..., area.y : area.y + area.height, area.x : area.x + area.width]


def _add_counterparts(ones: Sequence[FittedCondition], others: list[FittedCondition]) -> None:
    """Add a condition to `others` for each area in `ones` that `others` does not have.

    The new condition has the text, and the other inputs of the network, of the smallest area in
    `others` that covers its area.
    """
    for one in list(ones):
        covering = [other for other in others if _covers(other.area, one.area)]
        if one.area is None or not covering:
            continue
        closest = min(covering, key=lambda other: _size(other.area))
        if closest.area != one.area:
            own = one.condition
            condition = replace(closest.condition, controls=own.controls, grounding=own.grounding)
            is_negative = closest.is_negative
            others.append(replace(one, condition=condition, is_negative=is_negative))


def _covers(outer: Area | None, inner: Area | None) -> bool:
    if outer is None or inner is None:
        return outer is None
    return (
        outer.y <= inner.y
        and outer.x <= inner.x
        and inner.y + inner.height <= outer.y + outer.height
        and inner.x + inner.width <= outer.x + outer.width
    )


def _size(area: Area | None) -> float:
    return float("inf") if area is None else area.height * area.width
