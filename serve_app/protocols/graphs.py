"""Functions that build graphs in ComfyUI's API format."""

from __future__ import annotations

from typing import Any

_CELL = 8
"""The sides of images are multiples of this number of pixels."""


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def whole_cells(side: float) -> int:
    """Return the side in pixels, rounded down to a whole number of cells; 0 if it is too short."""
    return int(side) // _CELL * _CELL
