"""What a node passes on whose declaration does not say it."""

from __future__ import annotations

from typing import Any

from engine.graph.cost import (
    CHUNK_TOKENS,
    ConditioningShape,
    Estimate,
    ImageShape,
    LatentShape,
    MaskShape,
    Scalar,
    Shape,
    SigmasShape,
)


def default_estimate(outputs: tuple[str, ...]) -> Estimate:
    """That of a node which declares none: it costs nothing and its outputs are small."""
    return Estimate(tuple(map(default_shape, outputs)))


def default_shape(type_name: str) -> Shape:
    """That of an output of which nothing is known."""
    found: Shape = _DEFAULTS.get(type_name)
    return found


UNKNOWN_SIDE = 512
"""The sides of an image or a latent of which only the run can tell the size."""
_SQUARE = (1, UNKNOWN_SIDE, UNKNOWN_SIDE)
_DEFAULTS: dict[str, Any] = {
    "IMAGE": ImageShape(*_SQUARE),
    "MASK": MaskShape(*_SQUARE),
    "LATENT": LatentShape(*_SQUARE),
    "CONDITIONING": ConditioningShape(1, CHUNK_TOKENS),
    "SIGMAS": SigmasShape(20),
    "SAMPLER": "euler",
    "UPSCALE_MODEL": 4,
    "INT": Scalar(0),
    "FLOAT": Scalar(0.0),
    "STRING": Scalar(""),
    "BOOLEAN": Scalar(False),
}
SIZED_TYPES = frozenset(_DEFAULTS)
"""The types of outputs that a run measures."""
