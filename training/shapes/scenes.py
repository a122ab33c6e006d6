"""Scenes: the contents of pictures, drawn at random without held-out combinations.

Each property is an array over all scenes, so that thousands of scenes are drawn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from training.shapes.shapes import EXTENT, SHAPES

SIDE = 64
MOST_SHAPES = 3
SHAPE_NAMES = tuple(SHAPES)
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 25, 30),
    "orange": (255, 135, 10),
    "yellow": (252, 228, 40),
    "green": (30, 150, 50),
    "cyan": (50, 210, 220),
    "blue": (30, 65, 215),
    "purple": (130, 40, 170),
    "pink": (252, 130, 185),
    "brown": (115, 62, 25),
    "white": (248, 248, 248),
    "gray": (135, 135, 138),
    "black": (14, 14, 16),
}
COLOUR_NAMES = tuple(COLOURS)
_HELD_OUT_SHARE = 0.1
_HELD_OUT_SEED = 64


class Texture(IntEnum):
    """The texture of the background. `PLAIN` has one colour; all other textures have two."""

    PLAIN = 0
    HORIZONTAL_STRIPES = 1
    VERTICAL_STRIPES = 2
    GRADIENT_DOWN = 3
    GRADIENT_RIGHT = 4


class Relation(IntEnum):
    """The arrangement of the shapes of a scene, in the order in which they are listed."""

    ALONE = 0
    LEFT_OF = 1
    ABOVE = 2


class Size(IntEnum):
    SMALL = 0
    MEDIUM = 1
    LARGE = 2
    ANY = 3


CENTRE = 4
ANYWHERE = 9
"""Places are numbered by rows, from 0 at the top left to 8 at the bottom right."""

_RADII = np.array([[11, 12.5], [14.5, 16.5], [18.5, 21], [12, 20]])
"""The smallest and the largest radius in pixels, by size."""
_RADII_OF_TWO = (12.5, 13.7)
_RADII_OF_THREE = (9.0, 9.8)
_MIX = (0.46, 0.46, 0.08)
"""The shares of scenes with one, two and three shapes."""


def _held_out() -> NDArray[np.bool_]:
    """Return whether training leaves a combination out, by shape, colour and background colour."""
    size = (len(SHAPES), len(COLOURS), len(COLOURS))
    chosen = np.random.default_rng(_HELD_OUT_SEED).random(size) < _HELD_OUT_SHARE
    return chosen & _visible()


def _visible() -> NDArray[np.bool_]:
    size = (len(SHAPES), len(COLOURS), len(COLOURS))
    return np.broadcast_to(~np.eye(len(COLOURS), dtype=bool), size)


HELD_OUT = _held_out()
TRAINED = _visible() & ~HELD_OUT


@dataclass(frozen=True, slots=True)
class Scenes:
    """n scenes. In a plain background, the `second` colour equals the first colour."""

    count: NDArray[np.int64]
    shapes: NDArray[np.int64]
    """(n, 3) indices into SHAPE_NAMES. In each row, only the first `count` entries are used."""
    colours: NDArray[np.int64]
    """(n, 3) indices into COLOUR_NAMES."""
    centres: NDArray[np.float32]
    """(n, 3, 2) x and y in pixels."""
    radii: NDArray[np.float32]
    """(n, 3) in pixels."""
    background: NDArray[np.int64]
    second: NDArray[np.int64]
    texture: NDArray[np.int64]
    relation: NDArray[np.int64]
    size: NDArray[np.int64]
    place: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.count)

    def subset(self, rows: NDArray[np.int64] | slice) -> Scenes:
        return Scenes(*(getattr(self, each.name)[rows] for each in fields(self)))


def draw_scenes(
    rng: Generator,
    n: int,
    *,
    allowed: NDArray[np.bool_] = TRAINED,
    counts: Sequence[float] = _MIX,
    textured: float = 0.06,
) -> Scenes:
    """Return scenes in which every (shape, colour, background) is `allowed`.

    `counts` are the shares of scenes with one, two and three shapes, and `textured` is the share of
    scenes whose background is not plain.
    """
    count = rng.choice(np.arange(1, MOST_SHAPES + 1), size=n, p=np.asarray(counts) / sum(counts))
    texture, background, second = _draw_backgrounds(rng, n, textured)
    shapes, colours = _draw_pairs(rng, allowed, background, second)
    relation = np.where(count == 1, Relation.ALONE, rng.integers(1, len(Relation), n))
    size = np.where(count == 1, rng.integers(len(Size), size=n), Size.ANY)
    has_place = rng.random(n) < 0.6
    place = np.where((count == 1) & has_place, rng.integers(ANYWHERE, size=n), ANYWHERE)
    radii = _draw_radii(rng, count, size)
    centres = _draw_centres(rng, count, relation, radii=radii, place=place)
    return Scenes(
        count=count,
        shapes=shapes,
        colours=colours,
        centres=centres.astype(np.float32),
        radii=radii.astype(np.float32),
        background=background,
        second=second,
        texture=texture,
        relation=relation,
        size=size,
        place=place,
    )


def _draw_backgrounds(
    rng: Generator, n: int, textured: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the textures, the colours and the second colours of backgrounds, (n,) each."""
    texture = np.where(rng.random(n) < textured, rng.integers(1, len(Texture), n), Texture.PLAIN)
    background = rng.integers(len(COLOURS), size=n)
    other = (background + rng.integers(1, len(COLOURS), n)) % len(COLOURS)
    return texture, background, np.where(texture == Texture.PLAIN, background, other)


def _draw_pairs(
    rng: Generator,
    allowed: NDArray[np.bool_],
    background: NDArray[np.int64],
    second: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return shapes and colours, (n, 3) each. All colours of a scene are different."""
    n, every = len(background), np.arange(len(background))
    free = np.moveaxis(allowed[:, :, background] & allowed[:, :, second], 2, 0).copy()
    shapes = np.zeros((n, MOST_SHAPES), np.int64)
    colours = np.zeros((n, MOST_SHAPES), np.int64)
    for slot in range(MOST_SHAPES):
        keys = rng.random(free.shape) * free
        best = keys.reshape(n, -1).argmax(axis=1)
        shapes[:, slot], colours[:, slot] = np.divmod(best, len(COLOURS))
        free[every, :, colours[:, slot]] = False
    return shapes, colours


def _draw_radii(
    rng: Generator, count: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.float64]:
    n = len(count)
    low, high = _RADII[size].T
    alone = rng.uniform(low, high, (MOST_SHAPES, n)).T
    two = rng.uniform(*_RADII_OF_TWO, (n, MOST_SHAPES))
    three = rng.uniform(*_RADII_OF_THREE, (n, MOST_SHAPES))
    one_or_two: NDArray[np.float64] = np.where((count == 1)[:, None], alone, two)
    return np.where((count == 3)[:, None], three, one_or_two)


def _draw_centres(
    rng: Generator,
    count: NDArray[np.int64],
    relation: NDArray[np.int64],
    *,
    radii: NDArray[np.float64],
    place: NDArray[np.int64],
) -> NDArray[np.float64]:
    alone = _alone(rng, radii, place)
    second = _in_a_row(rng, count, relation, slot=1)
    third = _in_a_row(rng, count, relation, slot=2)
    first = np.where((count == 1)[:, None], alone, _in_a_row(rng, count, relation, slot=0))
    return np.stack([first, second, third], axis=1)


def _alone(
    rng: Generator, radii: NDArray[np.float64], place: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return centres (n, 2) in pixels: at the edge or corner of the place, or near the middle."""
    n = len(place)
    largest_offset = (SIDE / 2 - EXTENT * radii[:, 0])[:, None]
    row, column = np.divmod(np.where(place == ANYWHERE, CENTRE, place), 3)
    towards = np.stack([column - 1, row - 1], axis=1)
    jitter = np.where((place == ANYWHERE)[:, None], 4.0, 1.5)
    offset = towards * (largest_offset - 1.5) + rng.uniform(-1, 1, (n, 2)) * jitter
    return SIDE / 2 + np.clip(offset, -largest_offset, largest_offset)


def _in_a_row(
    rng: Generator, count: NDArray[np.int64], relation: NDArray[np.int64], slot: int
) -> NDArray[np.float64]:
    """Return centres (n, 2) in pixels, evenly spaced in the direction of the relation."""
    n = len(count)
    share = SIDE / np.maximum(count, 2)
    along = share * (slot + 0.5) + rng.uniform(-0.5, 0.5, n)
    across = SIDE / 2 + rng.uniform(-5, 5, n)
    sideways = relation == Relation.LEFT_OF
    return np.stack([np.where(sideways, along, across), np.where(sideways, across, along)], axis=1)
