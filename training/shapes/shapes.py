"""The shapes as signed distances: negative inside, positive outside.

The centre of a shape is at (0, 0), and y points down. The radius of the shape is the unit of all
lengths. The formulas are from I. Quilez, "2D distance functions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = NDArray[np.float32]
"""One value per pixel, with any number of axes."""
Shape: TypeAlias = Callable[[Field, Field], Field]

EXTENT = 1.12
"""The largest distance of a point of any shape from its centre, in radii."""


def circle(x: Field, y: Field) -> Field:
    return np.hypot(x, y) - 0.95


def square(x: Field, y: Field) -> Field:
    return np.maximum(np.abs(x), np.abs(y)) - 0.84


def triangle(x: Field, y: Field) -> Field:
    """Return the distances of a triangle that points up."""
    tip, base, half_width = -0.98, 0.84, 1.05
    height = base - tip
    side = (height * np.abs(x) - half_width * (y - tip)) / np.hypot(height, half_width)
    return np.maximum(side, y - base)


def star(x: Field, y: Field) -> Field:
    """Return the distances of a star with five points. One point is at the top."""
    outer, inner = 1.12, 0.5
    wedge = 2 * np.pi / 5
    angle = np.abs((np.arctan2(x, -y) + wedge / 2) % wedge - wedge / 2)
    length = np.hypot(x, y)
    # Each half of a point is a wedge of 36 degrees with one edge, from the tip to the notch.
    notch_x, notch_y = inner * np.cos(wedge / 2), inner * np.sin(wedge / 2)
    edge = np.hypot(outer - notch_x, notch_y)
    along, across = length * np.cos(angle), length * np.sin(angle)
    return ((along - outer) * notch_y + across * (outer - notch_x)) / edge


def cross(x: Field, y: Field) -> Field:
    """Return the distances of an upright cross whose arms have the same width."""
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(x - 1.0, y - 0.34), np.maximum(x - 0.34, y - 1.0))


def heart(x: Field, y: Field) -> Field:
    """Return the distances of a square on its corner, with half circles on both upper sides."""
    half, middle = 0.86, 0.1
    x, y = np.abs(x), y - middle
    corner = (x + np.abs(y) - half) / np.sqrt(np.float32(2))
    lobe = np.hypot(x - half / 2, y + half / 2) - half / np.sqrt(np.float32(2))
    return np.minimum(corner, lobe)


def crescent(x: Field, y: Field) -> Field:
    """Return the distances of a crescent that is open to the right."""
    return np.maximum(np.hypot(x, y) - 1.0, 0.78 - np.hypot(x - 0.48, y))


def ring(x: Field, y: Field) -> Field:
    return np.abs(np.hypot(x, y) - 0.72) - 0.27


SHAPES: dict[str, Shape] = {
    each.__name__: each for each in (circle, square, triangle, star, cross, heart, crescent, ring)
}
