"""Inputs for sides of images and places in them, which several nodes share."""

from __future__ import annotations

from engine.graph.declarations import Choice, Int

MAX_SIDE = 16384
CELL = 8
"""Pixels in a side of a latent's cell."""

PLACE = Int(0, min=0, max=MAX_SIDE, tooltip="In pixels.")
CELL_PLACE = Int(0, min=0, max=MAX_SIDE, step=CELL, tooltip="In pixels.")

CROP = Choice(("disabled", "center"), tooltip="Whether what does not fit is cut off evenly.")


def side(default: int, *, step: int = 8, tooltip: str = "") -> Int:
    """A length in pixels. It may be 0."""
    return Int(default, min=0, max=MAX_SIDE, step=step, limit="longest_side", tooltip=tooltip)
