"""Recognises the shapes on a picture without a network, from colours and outlines.

The background has the median colour of the border. Pixels of other colours are split into patches
of one colour. Each patch is compared with every shape, drawn with the patch's area and centre.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from training.shapes.drawing import PALETTE, coverage
from training.shapes.scenes import SHAPE_NAMES, SIDE

Picture = NDArray[np.float32]
"""(64, 64, 3) of 0..1."""
Mask = NDArray[np.bool_]

_BORDER = 2
_UNLIKE_BACKGROUND = 0.2
"""The smallest distance in RGB of 0..1 between the background and a patch. The two closest colours
have a distance of 0.38.
"""
_ALIKE = 0.15
"""The largest distance between neighbouring pixels of one patch."""
_LEAST_PIXELS = 40
_LEAST_OVERLAP = 0.6
UNCLEAR = -1
"""The `shape` of a patch that is similar to no shape."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch of one colour. `shape` and `colour` are indexes into SHAPE_NAMES and COLOUR_NAMES."""

    shape: int
    colour: int
    x: float
    y: float
    area: float


@dataclass(frozen=True, slots=True)
class Recognised:
    """The content of a picture. The largest patch is first."""

    background: int
    patches: tuple[Patch, ...]


def judge(picture: Picture) -> Recognised:
    """Recognise the shapes on a 64x64 picture with a plain background."""
    ground = _border_colour(picture)
    apart = np.linalg.norm(picture - ground, axis=-1) > _UNLIKE_BACKGROUND
    found = [_patch(picture, ground, mask) for mask in _patches(picture, apart)]
    found.sort(key=lambda patch: -patch.area)
    return Recognised(nearest_colour(ground), tuple(found))


def nearest_colour(colour: NDArray[np.float32]) -> int:
    return int(np.linalg.norm(PALETTE - colour, axis=-1).argmin())


def _border_colour(picture: Picture) -> NDArray[np.float32]:
    inner = np.zeros((SIDE, SIDE), bool)
    inner[_BORDER:-_BORDER, _BORDER:-_BORDER] = True
    median: NDArray[np.float32] = np.median(picture[~inner], axis=0)
    return median


def _patches(picture: Picture, apart: Mask) -> Iterator[Mask]:
    """Yield groups of pixels that are connected through neighbours with similar colours."""
    down = _linked(picture[:-1], picture[1:], apart[:-1] & apart[1:])
    right = _linked(picture[:, :-1], picture[:, 1:], apart[:, :-1] & apart[:, 1:])
    pixels = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    one = np.concatenate([pixels[:-1][down], pixels[:, :-1][right]])
    other = np.concatenate([pixels[1:][down], pixels[:, 1:][right]])
    links = coo_array((np.ones(len(one)), (one, other)), shape=(SIDE * SIDE, SIDE * SIDE))
    labels = connected_components(links, directed=False)[1].reshape(SIDE, SIDE)
    names, sizes = np.unique(labels[apart], return_counts=True)
    yield from (labels == name for name in names[sizes >= _LEAST_PIXELS])


def _linked(one: Picture, other: Picture, both: Mask) -> Mask:
    linked: Mask = both & (np.linalg.norm(one - other, axis=-1) < _ALIKE)
    return linked


def _patch(picture: Picture, ground: NDArray[np.float32], mask: Mask) -> Patch:
    inner = mask & ~_grown(~mask)
    colour = np.median(picture[inner if inner.any() else mask], axis=0)
    # At soft edges, a pixel is between the colours of the background (0) and of the patch (1).
    span = colour - ground
    share = np.clip((picture - ground) @ span / (span @ span), 0, 1) * _grown(_grown(mask))
    area = float(share.sum())
    y, x = (float((share * axis).sum() / area) for axis in np.mgrid[:SIDE, :SIDE] + 0.5)
    return Patch(_shape(share, x, y, area), nearest_colour(colour), x, y, area)


def _grown(mask: Mask) -> Mask:
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:-1] |= mask[1:]
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    return grown


def _shape(share: NDArray[np.float32], x: float, y: float, area: float) -> int:
    areas, middles = _measures()
    radii = np.sqrt(area / areas)
    centres = np.array([x, y], np.float32) - middles * radii[:, None]
    drawn = coverage(np.arange(len(SHAPE_NAMES)), centres, radii)
    overlap = np.minimum(drawn, share).sum(axis=(1, 2)) / np.maximum(drawn, share).sum(axis=(1, 2))
    best = int(overlap.argmax())
    return best if overlap[best] >= _LEAST_OVERLAP else UNCLEAR


@cache
def _measures() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the areas (shapes,) and the centres of mass (shapes, 2) of shapes of radius 1."""
    radius, middle = 25.0, SIDE / 2
    n = len(SHAPE_NAMES)
    drawn = coverage(
        np.arange(n), np.full((n, 2), middle, np.float32), np.full(n, radius, np.float32)
    )
    areas = drawn.sum(axis=(1, 2))
    axes = np.arange(SIDE) + 0.5 - middle
    x = (drawn.sum(axis=1) * axes).sum(axis=1) / areas
    y = (drawn.sum(axis=2) * axes).sum(axis=1) / areas
    return areas / radius**2, (np.stack([x, y], axis=1) / radius).astype(np.float32)
