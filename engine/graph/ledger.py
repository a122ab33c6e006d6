"""Adds up the cost of a graph node by node, before the graph is accepted and while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from engine.errors import TooLarge
from engine.families.family import ModelName
from engine.graph.cost import (
    MOST,
    UNKNOWN_SIDE,
    ConditioningShape,
    Cost,
    Estimate,
    GuiderShape,
    ImageShape,
    ModelShape,
    Scalar,
    Shape,
    bytes_of,
    model_shape,
    saturated,
)
from engine.graph.declarations import Link, NodeType, clamped
from engine.graph.graph import Graph, Node, run_order
from engine.graph.limits import Limits, TextBudget

_UNKNOWN_SIZE = (UNKNOWN_SIDE, UNKNOWN_SIDE)
NodeTypes: TypeAlias = Mapping[str, NodeType]
"""The node types by `class_type`."""
FileSizes: TypeAlias = Mapping[str, tuple[int, int]]
"""The known widths and heights of input files in pixels, by their names."""


@dataclass(frozen=True, slots=True)
class Excess:
    limit: str
    """The name of the limit in `Limits`."""
    node_id: str
    """The node that costs most, or the node that exceeds the limit."""
    value: float
    most: float
    message: str
    """The error message. It names the node, the value, the limit and what to lower."""


_MESSAGES = {
    "max_conditioning_rows": "this node gives a sampler {value} rows of conditioning, but at most "
    "{most} are allowed; combine fewer conditionings",
    "max_tokens": "the conditioning of this node has {value} tokens, but at most {most} are "
    "allowed; shorten the text, or concatenate fewer conditionings",
    "max_merged_models": "at this node the job needs {value} models at once that have LoRAs or "
    "other models merged into them, but at most {most} are allowed; merge fewer, or use each of "
    "them before the next one is merged",
    "max_outputs": "with this node the job saves {value} images and latents, but at most {most} "
    "are allowed; save fewer, or send several jobs",
    "max_live_bytes": "at this node the job needs {value} bytes at once, but at most {most} "
    "are allowed; lower the width and height or the batch size, or change the graph so "
    "that fewer results must be kept for later nodes",
    "max_cost": "the job costs {value} megapixel-steps or more, {own} of them for this node, but "
    "at most {most} are allowed; lower the steps, the width and height or the batch size, or use "
    "fewer nodes",
}
"""The error message for each limit, by its name in `Limits`, in the order of the checks."""


@dataclass(slots=True)
class _Peak:
    value: float = 0
    node: Node | None = None

    def offer(self, value: float, node: Node) -> None:
        if value > self.value:
            self.value, self.node = value, node


class Ledger:
    """The cost of the nodes that have started, and the size of their outputs that are alive."""

    def __init__(
        self, graph: Graph, types: NodeTypes, limits: Limits, sizes: FileSizes | None = None
    ) -> None:
        self._types = types
        self._texts = TextBudget(limits)
        self._sizes = sizes or {}
        self._shapes: dict[str, Sequence[Shape]] = {}
        self._consumers = Counter(source for node in graph.nodes for source in node.sources)
        self._output_bytes: dict[str, int] = {}
        self._scratch: dict[str, int] = {}
        self._merged: dict[str, int] = {}
        self.node_bytes: dict[str, int] = {}
        """The memory that the outputs and the body of each started node need, in bytes."""
        self._work, self._live_bytes, self._result_bytes = 0.0, 0, 0
        self._peaks = {limit: _Peak() for limit in _MESSAGES}

    @property
    def cost(self) -> Cost:
        peaks = self._peaks
        return Cost(
            work=round(self._work, 3),
            live_bytes=int(peaks["max_live_bytes"].value),
            rows=int(peaks["max_conditioning_rows"].value),
            tokens=int(peaks["max_tokens"].value),
            outputs=int(peaks["max_outputs"].value),
            result_bytes=self._result_bytes,
        )

    def excess(self, limits: Limits) -> Excess | None:
        """Return the first limit that the nodes added so far exceed, or None."""
        for name, peak in self._peaks.items():
            value = self._work if name == "max_cost" else peak.value
            most = getattr(limits, name)
            if most and value > most and peak.node is not None:
                return _excess(name, peak, value=value, most=most)
        return None

    def shapes_of(self, node: Node) -> Sequence[Shape]:
        return self._shapes[node.id]

    def start(self, node: Node) -> None:
        """Add the cost of a node whose sources have ended.

        Raises TooLarge if the texts or the expressions of the graph become too long with this node.
        """
        declared, inputs = self._types[node.class_type], self._inputs(node)
        self._refuse(node, self._texts.add_expressions(declared.expressions(inputs)))
        estimate = declared.estimated(inputs)
        made = [each.value for each in estimate.shapes if isinstance(each, Scalar)]
        self._refuse(node, self._texts.add(made))
        shapes = self._with_merged(node, self._with_guidance(node, estimate.shapes))
        self._shapes[node.id] = shapes
        self._output_bytes[node.id] = _size(shapes)
        self._scratch[node.id] = saturated(estimate.scratch_bytes)
        self._work = min(self._work + estimate.work, float(MOST))
        size_bytes = self._output_bytes[node.id] + self._scratch[node.id]
        self._live_bytes += size_bytes
        merged = max(map(_merged_count, shapes), default=0)
        # A node with a merged model among its outputs must not start early, because other merged
        # models may still be alive. The size `MOST` prevents an early start.
        self.node_bytes[node.id] = MOST if merged else size_bytes
        self._note(node, estimate, merged=merged)

    def end(self, node: Node, shapes: Sequence[Shape] | None = None) -> None:
        """Release the values that no further node needs.

        `shapes` are the measured shapes of the node's outputs; None keeps the estimated shapes.
        """
        self._live_bytes -= self._scratch.pop(node.id)
        if shapes is not None:
            size_bytes = _size(shapes)
            self._live_bytes += size_bytes - self._output_bytes[node.id]
            self._shapes[node.id] = shapes
            self._output_bytes[node.id] = size_bytes
            self._peaks["max_live_bytes"].offer(self._live_bytes, node)
        if not self._consumers[node.id]:
            self._release(node.id)
        for source in node.sources:
            self._consumers[source] -= 1
            if not self._consumers[source]:
                self._release(source)

    def _inputs(self, node: Node) -> dict[str, Any]:
        inputs = dict(node.literals)
        for name in self._types[node.class_type].file_inputs:
            if name in inputs:
                inputs[name] = ImageShape(1, *self._sizes.get(inputs[name], _UNKNOWN_SIZE))
        for name in self._types[node.class_type].model_inputs:
            if name in inputs:
                inputs[name] = ModelName(inputs[name], node.families.get(name))
        declared = self._types[node.class_type].all_inputs
        for name, source in node.links.items():
            shape = self._shapes[source.node_id][source.output]
            inputs[name] = clamped(declared[name], shape) if isinstance(shape, Scalar) else shape
        return inputs

    def values(self, node: Node) -> dict[str, Any]:
        """Return the linked numbers, texts and truth values of a node, by input."""
        found = {name: self._shapes[at.node_id][at.output] for name, at in node.links.items()}
        return {name: each.value for name, each in found.items() if isinstance(each, Scalar)}

    def _with_merged(self, node: Node, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """Return the shapes, marked as merged if an input has merged weights."""
        if self._merged.keys().isdisjoint(node.sources):
            return tuple(shapes)
        return tuple(map(_merged, shapes))

    def _with_guidance(self, node: Node, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Return the shapes, where a model made from a costlier model costs as much."""
        declared, given = self._types[node.class_type], dict[str, ModelShape]()
        for name, at in node.links.items():
            shape, link = self._shapes[at.node_id][at.output], declared.all_inputs[name]
            if isinstance(shape, ModelShape) and shape.costs_more and isinstance(link, Link):
                given.setdefault(link.type, shape)
        return [
            _guided(shape, given[name]) if name in given else shape
            for name, shape in zip(declared.outputs, shapes, strict=True)
        ]

    def _refuse(self, node: Node, problem: str | None) -> None:
        if problem:
            raise TooLarge(f"node {node.id} ({node.class_type}): {problem}")

    def _release(self, node_id: str) -> None:
        self._live_bytes -= self._output_bytes[node_id]
        self._merged.pop(node_id, None)

    def _note(self, node: Node, estimate: Estimate, *, merged: int) -> None:
        peaks = self._peaks
        peaks["max_live_bytes"].offer(saturated(self._live_bytes), node)
        if estimate.work:
            peaks["max_cost"].offer(estimate.work, node)
        if estimate.rows:
            peaks["max_conditioning_rows"].offer(estimate.rows, node)
        if merged:
            self._merged[node.id] = merged
            peaks["max_merged_models"].offer(sum(self._merged.values()), node)
        if estimate.results:
            saved = peaks["max_outputs"].value + estimate.results
            peaks["max_outputs"].offer(min(saved, MOST), node)
            self._result_bytes = saturated(self._result_bytes + estimate.result_bytes)
        for shape in estimate.shapes:
            if isinstance(shape, ConditioningShape):
                peaks["max_conditioning_rows"].offer(shape.rows, node)
                peaks["max_tokens"].offer(shape.tokens, node)


def _guided(shape: Shape, by: ModelShape) -> Shape:
    """Return the shape of a model that was made from the costlier model `by`."""
    own = model_shape(shape)
    return own if own.costs_more else replace(by, is_merged=own.is_merged)


def _merged(shape: Shape) -> Shape:
    """Return the shape, marked as merged if it is a model. None may stand for a model."""
    match shape:
        case GuiderShape():
            return replace(shape, model=replace(shape.model, is_merged=True))
        case ModelShape():
            return replace(shape, is_merged=True)
        case None:
            return ModelShape(is_merged=True)
        case _:
            return shape


def _merged_count(shape: Shape) -> int:
    """Return the number of merged models and ControlNets in an output."""
    match shape:
        case GuiderShape():
            texts = shape.positive.merged + shape.negative.merged
            return _merged_count(shape.model) + texts
        case ModelShape():
            return shape.is_merged + _merged_count(shape.third_conditioning)
        case ConditioningShape():
            return shape.merged
        case _:
            return 0


def _size(shapes: Sequence[Shape]) -> int:
    return sum(map(bytes_of, shapes))


def _excess(limit: str, peak: _Peak, *, value: float, most: float) -> Excess:
    assert peak.node is not None
    where = f"node {peak.node.id} ({peak.node.class_type})"
    numbers = {"value": f"{value:,.0f}", "most": f"{most:,.0f}", "own": f"{peak.value:,.0f}"}
    message = f"{where}: {_MESSAGES[limit].format(**numbers)}"
    return Excess(limit, peak.node.id, value=round(value, 3), most=most, message=message)


def ledger_of(
    graph: Graph, types: NodeTypes, limits: Limits, *, sizes: FileSizes | None = None
) -> Ledger | Excess:
    """Return the ledger after all nodes have run one by one, or the first exceeded limit.

    Raises TooLarge if the nodes make too much text.
    """
    order = run_order(graph)
    ledger = Ledger(graph, types, limits, sizes)
    for node in order:
        ledger.start(node)
        ledger.end(node)
    if ledger.excess(limits) is None:
        return ledger
    return _first_excess(order, Ledger(graph, types, limits, sizes), limits)


def _first_excess(order: Sequence[Node], ledger: Ledger, limits: Limits) -> Excess:
    for node in order:
        ledger.start(node)
        if excess := ledger.excess(limits):
            return excess
        ledger.end(node)
    raise AssertionError("all nodes together exceed a limit, but no prefix of them does")
