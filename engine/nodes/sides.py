"""Inputs for the sides of images and for positions in images, which several nodes share."""

from __future__ import annotations

from engine.graph.declarations import Choice, Int

MAX_SIDE = 16384
CELL = 8
"""The side of a cell of a latent, in pixels."""

POSITION = Int(0, min=0, max=MAX_SIDE, tooltip="The position in pixels.")
CELL_POSITION = Int(0, min=0, max=MAX_SIDE, step=CELL, tooltip="The position in pixels.")

CROP = Choice(
    ("disabled", "center"), tooltip="Whether the image is cropped evenly to keep its proportions."
)


def side(default: int, *, step: int = 8, tooltip: str = "") -> Int:
    """Return an input for a length in pixels, which may be 0."""
    return Int(default, min=0, max=MAX_SIDE, step=step, limit="longest_side", tooltip=tooltip)
