"""How adapters write graphs in ComfyUI's API format. Pure."""

from __future__ import annotations

from typing import Any

_CELL = 8
"""Sides of pictures are multiples of so many pixels."""


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def whole_cells(side: float) -> int:
    """The side of a picture in pixels, down to what one may have; 0 where it is too short."""
    return int(side) // _CELL * _CELL
