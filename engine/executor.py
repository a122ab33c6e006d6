"""Runs a graph: its nodes in order, and more of them while one waits for the device.

Nodes run in the order of `run_order`, by which the memory of a graph is estimated. While the node
that the order has come to waits for the device, ready nodes behind it start as well, so that they
share its calls. They hold no more than `overlap_bytes` of the graph. So what is alive at once is
never more than the estimate, which counts the order alone, and `overlap_bytes` together.

Nodes that need no device give way to other runs every few milliseconds. Until they are done, the
requests of the run are kept back, for then it does not depend on time which of them share a call.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Generator, Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.batcher import Answer, Execution, Request, Turn, Work
from engine.errors import EngineError, NodeFailed, OutOfMemory, is_out_of_memory
from engine.graph.declarations import Body
from engine.graph.graph import Graph, Node, run_order
from engine.meter import Meter
from engine.nodes import NODE_TYPES

if TYPE_CHECKING:
    from engine.diffusion.context import Context

OnOutput: TypeAlias = Callable[[str, Any], None]
"""Called with the id of an output node and its images or latents."""

_TURN_S = 0.01

BODIES: dict[str, Body] = {declared.class_type: declared.body for declared in NODE_TYPES}


def execute(
    graph: Graph,
    context: Context,
    *,
    on_output: OnOutput,
    on_node: Callable[[], None] = lambda: None,
    on_turn: Callable[[Node], None] = lambda _node: None,
    is_full: Callable[[], bool] = lambda: False,
    bodies: Mapping[str, Body] = BODIES,
    meter: Meter | None = None,
) -> Execution:
    """Yield the new requests of the nodes and receive their answers. Closing it closes the nodes.

    `on_node` is called when a node starts and when it ends, `on_turn` with each that works, at its
    start and with every answer. While it `is_full`, no node starts, and
    where none is left it waits for an empty list of answers. Raises NodeFailed, the EngineError
    that a node failed with, or TooLarge where a node goes beyond a limit of the `meter`.
    """
    nodes = _Nodes(
        graph,
        context,
        on_output=on_output,
        on_node=on_node,
        on_turn=on_turn,
        is_full=is_full,
        bodies=bodies,
        meter=meter,
    )
    try:
        requests = nodes.start_ready()
        while nodes.are_left:
            if nodes.has_startable:
                requests += nodes.resume((yield from _next_turn()))
            else:
                requests = nodes.resume((yield requests))
            requests += nodes.start_ready()
    finally:
        nodes.close()


def _next_turn() -> Generator[list[Request], list[Answer], list[Answer]]:
    """Wait until all other runs have had a turn. Returns the answers that came meanwhile."""
    turn = Turn()
    came = yield [turn]
    while not any(request is turn for request, _ in came):
        came += yield []
    return [(request, result) for request, result in came if request is not turn]


class _Nodes:
    """The nodes that wait for the device, and the outputs that other nodes still need."""

    def __init__(
        self,
        graph: Graph,
        context: Context,
        *,
        on_output: OnOutput,
        on_node: Callable[[], None],
        on_turn: Callable[[Node], None],
        is_full: Callable[[], bool],
        bodies: Mapping[str, Body],
        meter: Meter | None,
    ) -> None:
        self.in_flight: dict[Request, tuple[Node, Work[Any]]] = {}
        self._graph = graph
        self._context = context
        self._on_output = on_output
        self._on_node = on_node
        self._on_turn = on_turn
        self._is_full = is_full
        self._bodies = bodies
        self._meter = meter
        self._order = run_order(graph)
        self._outputs: dict[str, Any] = {}
        self._consumers: dict[str, int] = {}
        for node in self._order:
            for source in node.sources:
                self._consumers[source] = self._consumers.get(source, 0) + 1
        self._places = {node.id: place for place, node in enumerate(self._order)}
        self._reached = 0
        """The place of the first node in the order that has not ended."""
        self._ended: set[str] = set()
        self._ahead_bytes: dict[str, int] = {}
        """What each node takes that was started before the order had come to it."""
        self._ready: list[int] = []
        """The places of the nodes that are ready, in order."""
        self._sorter = TopologicalSorter({node.id: node.sources for node in self._order})
        self._sorter.prepare()
        self._find_ready()

    @property
    def are_left(self) -> bool:
        """Whether there are nodes that have not ended."""
        return self._reached < len(self._order)

    @property
    def has_startable(self) -> bool:
        """Whether a node may start now."""
        return self._startable() is not None

    def start_ready(self) -> list[Request]:
        """Start nodes for some milliseconds. Returns the requests that they make."""
        requests: list[Request] = []
        give_way_at = time.monotonic() + _TURN_S
        while (place := self._startable()) is not None:
            self._ready.remove(place)
            node = self._order[place]
            if place != self._reached:
                self._ahead_bytes[node.id] = self._graph.node_bytes.get(node.id, 0)
            requests += self._start(node)
            if time.monotonic() >= give_way_at:
                break
        return requests

    def resume(self, answers: list[Answer]) -> list[Request]:
        """Give nodes their answers, which are taken off the list so that nothing else holds them.

        Returns the next requests of the nodes.
        """
        requests: list[Request] = []
        while answers:
            requests += self._resume(*answers.pop(0))
        return requests

    def close(self) -> None:
        """Close the nodes that wait for the device. Raises NodeFailed where one will not."""
        failure: EngineError | None = None
        while self.in_flight:
            _, (node, work) = self.in_flight.popitem()
            try:
                work.close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed as well
                failure = _failure(node, error)
                failure.__cause__ = error
        if failure is not None:
            raise failure

    def _start(self, node: Node) -> list[Request]:
        self._on_node()
        self._on_turn(node)
        if self._meter is not None:
            self._meter.start(node)
        links = {name: self._outputs[at.node_id][at.output] for name, at in node.links.items()}
        result = self._call(node, links)
        if isinstance(result, Generator):
            return self._advance(node, result, None)
        self._end(node, result)
        return []

    def _call(self, node: Node, links: Mapping[str, Any]) -> Any:
        """Call the body. Where memory runs out, again once what nobody uses is dropped."""
        while True:
            try:
                return self._bodies[node.class_type](self._context, **node.literals, **links)
            except BaseException as error:
                if not (is_out_of_memory(error) and self._context.free_memory()):
                    raise _failure(node, error) from error

    def _resume(self, request: Request, result: Any) -> list[Request]:
        node, work = self.in_flight.pop(request)
        self._on_turn(node)
        return self._advance(node, work, result)

    def _advance(self, node: Node, work: Work[Any], result: Any) -> list[Request]:
        request: Any
        try:
            request = work.throw(result) if isinstance(result, Exception) else work.send(result)
        except StopIteration as stop:
            self._end(node, stop.value)
            return []
        except BaseException as error:
            raise _failure(node, error) from error
        if not isinstance(request, Request):
            work.close()
            raise NodeFailed(
                node.id, node.class_type, f"its body yielded {type(request).__name__}, no Request"
            )
        self.in_flight[request] = (node, work)
        return [request]

    def _end(self, node: Node, result: Any) -> None:
        self._on_node()
        if self._meter is not None:
            self._meter.end(node, () if node.is_output else result)
        if node.is_output:
            self._on_output(node.id, result)
        elif self._consumers.get(node.id):
            self._outputs[node.id] = result
        for source in node.sources:
            self._consumers[source] -= 1
            if not self._consumers[source]:
                del self._outputs[source]
                self._ahead_bytes.pop(source, None)
        if node.id not in self._outputs:
            self._ahead_bytes.pop(node.id, None)
        self._advance_order(node)
        self._sorter.done(node.id)
        self._find_ready()

    def _startable(self) -> int | None:
        """The place of the first ready node that may start."""
        if not self._ready or self._is_full():
            return None
        room = self._graph.overlap_bytes - sum(self._ahead_bytes.values())
        for place in self._ready:
            node_bytes = self._graph.node_bytes.get(self._order[place].id, 0)
            if place == self._reached or node_bytes <= room:
                return place
        return None

    def _find_ready(self) -> None:
        for node_id in self._sorter.get_ready():
            insort(self._ready, self._places[node_id])

    def _advance_order(self, ended: Node) -> None:
        self._ended.add(ended.id)
        while self._reached < len(self._order) and self._order[self._reached].id in self._ended:
            self._reached += 1
            if self._reached < len(self._order):
                self._ahead_bytes.pop(self._order[self._reached].id, None)


def _failure(node: Node, error: BaseException) -> EngineError:
    """The error of a run that a body has ended, also by what would end a thread or a process."""
    if isinstance(error, EngineError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(f"node {node.id} ({node.class_type}): {OutOfMemory.__doc__}")
    return NodeFailed(node.id, node.class_type, f"{type(error).__name__}: {error}")
