"""Runs a graph: starts every node whose inputs are ready, so several may wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.batcher import Answer, Execution, Request, Work
from engine.errors import EngineError, NodeFailed
from engine.graph.declarations import Body
from engine.graph.graph import Graph, Node
from engine.nodes import NODE_TYPES

if TYPE_CHECKING:
    from engine.diffusion.context import Context

OnOutput: TypeAlias = Callable[[str, Any], None]
"""Called with the id of an output node and its images or latents."""

BODIES: dict[str, Body] = {declared.class_type: declared.body for declared in NODE_TYPES}


def execute(
    graph: Graph,
    context: Context,
    *,
    on_output: OnOutput,
    on_node: Callable[[], None] = lambda: None,
    bodies: Mapping[str, Body] = BODIES,
) -> Execution:
    """Yield the new requests of the nodes and receive their answers. Closing it closes the nodes.

    `on_node` is called when a node starts and when it ends. Raises NodeFailed, or the EngineError
    that a node failed with.
    """
    nodes = _Nodes(graph, context, on_output=on_output, on_node=on_node, bodies=bodies)
    try:
        requests = nodes.start_ready()
        while nodes.in_flight:
            answers = yield requests
            requests = [request for answer in answers for request in nodes.resume(answer)]
            requests += nodes.start_ready()
    finally:
        nodes.close()


class _Nodes:
    """The nodes that wait for the device, and the outputs that other nodes still need."""

    def __init__(
        self,
        graph: Graph,
        context: Context,
        *,
        on_output: OnOutput,
        on_node: Callable[[], None],
        bodies: Mapping[str, Body],
    ) -> None:
        self.in_flight: dict[Request, tuple[Node, Work[Any]]] = {}
        self._graph = graph
        self._context = context
        self._on_output = on_output
        self._on_node = on_node
        self._bodies = bodies
        self._outputs: dict[str, Any] = {}
        self._consumers: dict[str, int] = {}
        for node in graph.nodes:
            for source in node.sources:
                self._consumers[source] = self._consumers.get(source, 0) + 1
        self._sorter = TopologicalSorter({node.id: node.sources for node in graph.nodes})
        self._sorter.prepare()

    def start_ready(self) -> list[Request]:
        """Start every node that is ready or becomes so. Returns the requests that they make."""
        requests: list[Request] = []
        while ready := self._sorter.get_ready():
            for node_id in ready:
                requests += self._start(self._graph.node(node_id))
        return requests

    def resume(self, answer: Answer) -> list[Request]:
        """Give a node its answer. Returns its next request, if it makes one."""
        request, result = answer
        node, work = self.in_flight.pop(request)
        return self._advance(node, work, result)

    def close(self) -> None:
        """Close the nodes that wait for the device."""
        for _, work in self.in_flight.values():
            work.close()
        self.in_flight.clear()

    def _start(self, node: Node) -> list[Request]:
        self._on_node()
        links = {name: self._outputs[at.node_id][at.output] for name, at in node.links.items()}
        try:
            result = self._bodies[node.class_type](self._context, **node.literals, **links)
        except Exception as error:
            raise _failure(node, error) from error
        if isinstance(result, Generator):
            return self._advance(node, result, None)
        self._end(node, result)
        return []

    def _advance(self, node: Node, work: Work[Any], result: Any) -> list[Request]:
        try:
            request = work.throw(result) if isinstance(result, Exception) else work.send(result)
        except StopIteration as stop:
            self._end(node, stop.value)
            return []
        except Exception as error:
            raise _failure(node, error) from error
        self.in_flight[request] = (node, work)
        return [request]

    def _end(self, node: Node, result: Any) -> None:
        self._on_node()
        if node.is_output:
            self._on_output(node.id, result)
        elif self._consumers.get(node.id):
            self._outputs[node.id] = result
        for source in node.sources:
            self._consumers[source] -= 1
            if not self._consumers[source]:
                del self._outputs[source]
        self._sorter.done(node.id)


def _failure(node: Node, error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return NodeFailed(node.id, node.class_type, f"{type(error).__name__}: {error}")
