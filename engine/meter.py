"""Checks the limits of a graph during its run, with the measured sizes of its values.

A graph is accepted with estimated sizes. The sizes of files, the factors of upscale models and the
tokens of texts are known only during the run, so the cost is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.errors import InputsInvalid, TooLarge
from engine.graph.cost import (
    CHANNELS,
    COLOURS,
    SIZED_TYPES,
    ConditioningShape,
    DeepLatentShape,
    ImageShape,
    LatentShape,
    MaskShape,
    Scalar,
    Shape,
    SigmasShape,
    TransparentImageShape,
    saturated,
)
from engine.graph.declarations import Float, Input, Int, String
from engine.graph.graph import Graph, Node
from engine.graph.ledger import Ledger, NodeTypes
from engine.graph.limits import Limits
from engine.nodes import NODE_TYPES
from engine.nodes.sides import CELL

TYPES = {declared.class_type: declared for declared in NODE_TYPES}


class Meter:
    """Adds up the cost of a run. `start` and `end` raise TooLarge if a limit is exceeded."""

    def __init__(self, graph: Graph, limits: Limits, types: NodeTypes = TYPES) -> None:
        self._types = types
        self._ledger = Ledger(graph, types, limits)
        most = limits.max_live_bytes and limits.max_live_bytes + graph.overlap_bytes
        self._limits = replace(limits, max_live_bytes=most)

    def start(self, node: Node) -> None:
        """Count a node before its body is called. Raises InputsInvalid for values out of range."""
        self._require_ranges(node)
        self._ledger.start(node)
        self._require_limits()

    def end(self, node: Node, outputs: Sequence[Any]) -> None:
        """Add the measured sizes of the outputs of a node."""
        pairs = zip(self._types[node.class_type].outputs, self._ledger.shapes_of(node), strict=True)
        found = [
            measured(value, shape) if SIZED_TYPES.issuperset(name.split(",")) else shape
            for value, (name, shape) in zip(outputs, pairs, strict=False)
        ]
        self._ledger.end(node, found)
        self._require_limits()

    def _require_ranges(self, node: Node) -> None:
        declared = self._types[node.class_type]
        values = self._ledger.values(node)
        try:
            for name, value in values.items():
                require_range(name, declared.all_inputs[name], value, self._limits)
            if values and declared.check is not None:
                declared.check({**node.literals, **values})
        except ValueError as error:
            raise InputsInvalid(node.id, node.class_type, str(error)) from error

    def _require_limits(self) -> None:
        if excess := self._ledger.excess(self._limits):
            raise TooLarge(f"The job is larger than was estimated: {excess.message}.")


def require_range(name: str, declared: Input, value: Any, limits: Limits) -> None:
    """Raise ValueError if a number is not in the range of the input, or if a text is too long."""
    least: float
    most: float
    match declared:
        case Int():
            least, most = limits.bounds(declared)
        case Float():
            least, most = declared.min, declared.max
        case String() if len(value) > limits.max_text_chars:
            raise ValueError(
                f"{name} has {len(value)} characters, but at most {limits.max_text_chars} are "
                "allowed"
            )
        case _:
            return
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, but must be from {least:g} to {most:g}")


def measured(value: Any, shape: Shape) -> Shape:
    """Return the measured shape of an output. `shape` is the estimate."""
    match shape:
        case LatentShape():
            height, width = value.samples.shape[-2:]
            mask = value.noise_mask
            held = 0 if mask is None else mask.numel() * mask.element_size()
            kind = DeepLatentShape if value.samples.shape[1] > CHANNELS else LatentShape
            return kind(len(value.samples), width * CELL, height * CELL, held)
        case MaskShape():
            height, width = value.shape[-2:]
            count = math.prod(value.shape[:-2])
            return replace(shape, count=count, width=width, height=height)
        case ImageShape():
            count, height, width, channels = value.shape
            image = TransparentImageShape if channels > COLOURS else ImageShape
            return image(count, width, height, shape.held_bytes)
        case ConditioningShape():
            tokens = max((each.tokens.shape[1] for each in value), default=0)
            return replace(shape, tokens=saturated(tokens), texts=len(value))
        case SigmasShape():
            return SigmasShape(max(0, len(value.values) - 1))
        case Scalar():
            return Scalar(value)
        case int():
            factor: int = value.scale
            return factor
        case _:
            return shape
