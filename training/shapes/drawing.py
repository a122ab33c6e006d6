"""Draws scenes as pictures, with soft edges that are one pixel wide."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from training.shapes.scenes import COLOURS, MOST_SHAPES, SHAPE_NAMES, SIDE, Scenes, Texture
from training.shapes.shapes import SHAPES

PALETTE = np.array(list(COLOURS.values()), np.float32) / 255
"""(colours, 3) of 0..1."""
_COLOUR_JITTER = 0.02
_STRIPE = 8

_X = np.arange(SIDE, dtype=np.float32)[None, None, :] + 0.5
_Y = np.arange(SIDE, dtype=np.float32)[None, :, None] + 0.5


def draw(scenes: Scenes, rng: Generator) -> NDArray[np.float32]:
    """Return pictures (n, 64, 64, 3) of 0..1. Each colour is varied a little by `rng`."""
    pictures = _backgrounds(scenes, rng)
    for slot in range(MOST_SHAPES):
        rows = np.flatnonzero(scenes.count > slot)
        if len(rows):
            inside = coverage(
                scenes.shapes[rows, slot], scenes.centres[rows, slot], scenes.radii[rows, slot]
            )[..., None]
            colour = _varied(PALETTE[scenes.colours[rows, slot]], rng)[:, None, None]
            pictures[rows] = pictures[rows] * (1 - inside) + colour * inside
    return pictures


def coverage(
    shapes: NDArray[np.int64], centres: NDArray[np.float32], radii: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return (n, 64, 64) of 0..1: the share of each pixel that the shape covers."""
    found = np.zeros((len(shapes), SIDE, SIDE), np.float32)
    for shape in np.unique(shapes):
        rows = np.flatnonzero(shapes == shape)
        radius = radii[rows, None, None]
        x = (_X - centres[rows, 0, None, None]) / radius
        y = (_Y - centres[rows, 1, None, None]) / radius
        distance = SHAPES[SHAPE_NAMES[shape]](x, y) * radius
        found[rows] = np.clip(0.5 - distance, 0, 1)
    return found


def _backgrounds(scenes: Scenes, rng: Generator) -> NDArray[np.float32]:
    first = _varied(PALETTE[scenes.background], rng)[:, None, None]
    pictures = np.broadcast_to(first, (len(scenes), SIDE, SIDE, 3)).copy()
    rows = np.flatnonzero(scenes.texture != Texture.PLAIN)
    if len(rows):
        second = _varied(PALETTE[scenes.second[rows]], rng)[:, None, None]
        share = _SECOND_SHARE[scenes.texture[rows]][..., None]
        pictures[rows] = pictures[rows] * (1 - share) + second * share
    return pictures


def _varied(colours: NDArray[np.float32], rng: Generator) -> NDArray[np.float32]:
    jitter = rng.uniform(-_COLOUR_JITTER, _COLOUR_JITTER, colours.shape)
    return np.clip(colours + jitter, 0, 1).astype(np.float32)


def _second_share() -> NDArray[np.float32]:
    """Return (textures, 64, 64) of 0..1: the share of the second colour in each pixel."""
    position = np.arange(SIDE, dtype=np.float32)
    stripes = (position // _STRIPE) % 2
    ramp = position / (SIDE - 1)
    by_texture = {
        Texture.PLAIN: np.zeros((SIDE, SIDE)),
        Texture.HORIZONTAL_STRIPES: np.broadcast_to(stripes[:, None], (SIDE, SIDE)),
        Texture.VERTICAL_STRIPES: np.broadcast_to(stripes, (SIDE, SIDE)),
        Texture.GRADIENT_DOWN: np.broadcast_to(ramp[:, None], (SIDE, SIDE)),
        Texture.GRADIENT_RIGHT: np.broadcast_to(ramp, (SIDE, SIDE)),
    }
    return np.stack([by_texture[texture] for texture in Texture]).astype(np.float32)


_SECOND_SHARE = _second_share()
