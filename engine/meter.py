"""Meter: holds a run to the limits of its graph, with the sizes that its values turn out to have.

A graph is accepted by what its nodes declare. The sizes of files, the factors of upscale models and
the tokens of texts show only while it runs, so its cost is added up once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.errors import TooLarge
from engine.graph.cost import (
    ConditioningShape,
    ImageShape,
    LatentShape,
    MaskShape,
    Shape,
    SigmasShape,
    saturated,
)
from engine.graph.costing import Ledger
from engine.graph.graph import Graph, Node
from engine.graph.limits import Limits
from engine.nodes import NODE_TYPES

TYPES = {declared.class_type: declared for declared in NODE_TYPES}
_CELL = 8
"""Pixels in a side of a latent's cell."""


class Meter:
    """The cost of the nodes of one run so far. Each method raises TooLarge beyond a limit."""

    def __init__(self, graph: Graph, limits: Limits) -> None:
        self._ledger = Ledger(graph, TYPES)
        most = limits.max_live_bytes and limits.max_live_bytes + graph.overlap_bytes
        self._limits = replace(limits, max_live_bytes=most)

    def start(self, node: Node) -> None:
        """Count a node before its body is called."""
        self._ledger.start(node)
        self._require_limits()

    def end(self, node: Node, outputs: Sequence[Any]) -> None:
        """Count what a node has made."""
        shapes = self._ledger.shapes_of(node)
        found = [measured(value, shape) for value, shape in zip(outputs, shapes, strict=False)]
        self._ledger.end(node, found)
        self._require_limits()

    def _require_limits(self) -> None:
        if excess := self._ledger.excess(self._limits):
            raise TooLarge(f"The job turned out to be too large: {excess.message}.")


def measured(value: Any, shape: Shape) -> Shape:
    """The shape of an output, where the node's estimate of it was `shape`."""
    match shape:
        case LatentShape():
            height, width = value.samples.shape[-2:]
            mask = value.noise_mask
            held = 0 if mask is None else mask.numel() * mask.element_size()
            return LatentShape(len(value.samples), width * _CELL, height * _CELL, held)
        case MaskShape():
            height, width = value.shape[-2:]
            count = math.prod(value.shape[:-2])
            return replace(shape, count=count, width=width, height=height)
        case ImageShape():
            count, height, width, _ = value.shape
            return replace(shape, count=count, width=width, height=height)
        case ConditioningShape():
            tokens = max((each.tokens.shape[1] for each in value), default=0)
            return replace(shape, tokens=saturated(tokens), texts=len(value))
        case SigmasShape():
            return SigmasShape(max(0, len(value.values) - 1))
        case int():
            factor: int = value.scale
            return factor
        case _:
            return shape
