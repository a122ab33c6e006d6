"""Runs the nodes of a graph in order, and starts later nodes while a node waits for the device.

Nodes run in the order of `run_order`, on which the memory estimate of a graph is based. While the
current node waits for the device, later nodes that are ready start as well, so that the nodes share
device calls. The later nodes use at most `Graph.overlap_bytes`, so the values alive at once never
exceed the estimate plus `overlap_bytes`.

After every `_TURN_S` seconds of nodes without device work, other runs are served. A run yields its
requests only when no further node can start. Timing therefore does not decide which requests share
a call.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Generator, Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.batcher import Answer, Execution, Request, Work, YieldRequest
from engine.errors import (
    CheckpointUnavailable,
    EngineError,
    InputFileUnavailable,
    InputsInvalid,
    NodeFailed,
    OutOfMemory,
    TooLarge,
    is_out_of_memory,
    is_shape_error,
)
from engine.graph.declarations import Body
from engine.graph.graph import Graph, Node, run_order
from engine.meter import Meter
from engine.nodes import NODE_TYPES

if TYPE_CHECKING:
    from engine.diffusion.context import Context

OnOutput: TypeAlias = Callable[[str, Any], None]
"""A function that is called with the id of an output node and its images or latents."""

_TURN_S = 0.01

BODIES: dict[str, Body] = {declared.class_type: declared.body for declared in NODE_TYPES}


class Executor:
    """Runs one graph. It keeps the nodes that wait for the device, and the outputs that other nodes
    still need.
    """

    def __init__(
        self,
        graph: Graph,
        context: Context,
        *,
        on_output: OnOutput,
        on_node: Callable[[], None] = lambda: None,
        on_turn: Callable[[Node], None] = lambda _node: None,
        is_full: Callable[[], bool] = lambda: False,
        bodies: Mapping[str, Body] = BODIES,
        meter: Meter | None = None,
    ) -> None:
        """`on_node` is called when a node starts and when a node ends. `on_turn` is called with a
        node when the node starts and before the node gets an answer. While `is_full` is true, no
        node starts.
        """
        self._in_flight: dict[Request, tuple[Node, Work[Any]]] = {}
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
        self._index_of = {node.id: index for index, node in enumerate(self._order)}
        self._reached = 0
        """The smallest index in `_order` of a node that has not ended."""
        self._ended: set[str] = set()
        self._ahead_bytes: dict[str, int] = {}
        """The estimated bytes of each node that started before its turn in `_order`."""
        self._ready: list[int] = []
        """The indices in `_order` of the nodes that are ready, ascending."""
        self._sorter = TopologicalSorter({node.id: node.sources for node in self._order})
        self._sorter.prepare()
        self._find_ready()

    def run(self) -> Execution:
        """Yield the new requests of the nodes and receive the answers to them.

        Closing the generator closes the nodes. If `is_full` is true and no node is running, the
        generator yields an empty list and waits for an empty list of answers.

        Raises NodeFailed, InputsInvalid, another EngineError with which a node failed, or TooLarge
        if a node exceeds a limit of the `meter`.
        """
        try:
            requests = self._start_ready()
            while self._reached < len(self._order):
                if self._startable() is not None:
                    requests += self._answer((yield from _next_turn()))
                else:
                    requests = self._answer((yield requests))
                requests += self._start_ready()
        finally:
            self._close()

    def _start_ready(self) -> list[Request]:
        """Start ready nodes for at most some milliseconds. Returns the requests of these nodes."""
        requests: list[Request] = []
        turn_ends_at = time.monotonic() + _TURN_S
        while (index := self._startable()) is not None:
            self._ready.remove(index)
            node = self._order[index]
            if index != self._reached:
                self._ahead_bytes[node.id] = self._graph.node_bytes.get(node.id, 0)
            requests += self._start(node)
            if time.monotonic() >= turn_ends_at:
                break
        return requests

    def _answer(self, answers: list[Answer]) -> list[Request]:
        """Give nodes their answers. Returns the next requests of the nodes.

        The answers are removed from the list, so that their memory can be freed.
        """
        requests: list[Request] = []
        while answers:
            requests += self._resume(*answers.pop(0))
        return requests

    def _close(self) -> None:
        """Close the nodes that wait for the device. Raises NodeFailed if a node does not close."""
        failure: EngineError | None = None
        while self._in_flight:
            _, (node, work) = self._in_flight.popitem()
            try:
                work.close()
            except BaseException as error:  # noqa: BLE001 - the other nodes must be closed as well
                failure = _failure(node, error)
                failure.__cause__ = error
        if failure is not None:
            raise failure

    def _start(self, node: Node) -> list[Request]:
        self._on_node()
        self._on_turn(node)
        if self._meter is not None:
            try:
                self._meter.start(node)
            except TooLarge:
                raise  # It names the node that costs most, which may be another one.
            except Exception as error:
                raise _failure(node, error) from error
        links = {name: self._outputs[at.node_id][at.output] for name, at in node.links.items()}
        result = self._call(node, links)
        if isinstance(result, Generator):
            return self._advance(node, result, None)
        self._end(node, result)
        return []

    def _call(self, node: Node, links: Mapping[str, Any]) -> Any:
        """Call the body. If memory runs out and some can be freed, call the body again."""
        while True:
            try:
                return self._bodies[node.class_type](self._context, **node.literals, **links)
            except BaseException as error:
                if not (is_out_of_memory(error) and self._context.free_memory()):
                    raise _failure(node, error) from error

    def _resume(self, request: Request, result: Any) -> list[Request]:
        node, work = self._in_flight.pop(request)
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
                node.id,
                node.class_type,
                f"the body yielded {type(request).__name__}, which is not a Request",
            )
        self._in_flight[request] = (node, work)
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
        """Return the index of the first ready node that may start."""
        if not self._ready or self._is_full():
            return None
        free_bytes = self._graph.overlap_bytes - sum(self._ahead_bytes.values())
        for index in self._ready:
            node_bytes = self._graph.node_bytes.get(self._order[index].id, 0)
            if index == self._reached or node_bytes <= free_bytes:
                return index
        return None

    def _find_ready(self) -> None:
        for node_id in self._sorter.get_ready():
            insort(self._ready, self._index_of[node_id])

    def _advance_order(self, ended: Node) -> None:
        self._ended.add(ended.id)
        while self._reached < len(self._order) and self._order[self._reached].id in self._ended:
            self._reached += 1
            if self._reached < len(self._order):
                self._ahead_bytes.pop(self._order[self._reached].id, None)


def _next_turn() -> Generator[list[Request], list[Answer], list[Answer]]:
    """Yield until the requests that other runs have queued are served.

    Returns the answers that arrive meanwhile.
    """
    turn = YieldRequest()
    came = yield [turn]
    while not any(request is turn for request, _ in came):
        came += yield []
    return [(request, result) for request, result in came if request is not turn]


def _failure(node: Node, error: BaseException) -> EngineError:
    """Return the error of a run whose node raised `error`.

    A plain EngineError of a body and an error about the shapes of tensors mean that the inputs of
    the node are wrong. An exception such as SystemExit, which would end the device thread, becomes
    NodeFailed. Errors of files and limits get the name of the node.
    """
    if type(error) is EngineError:
        return InputsInvalid(node.id, node.class_type, str(error))
    if isinstance(error, TooLarge | InputFileUnavailable | CheckpointUnavailable):
        return type(error)(f"node {node.id} ({node.class_type}): {error}")
    if isinstance(error, EngineError):
        return error
    if is_shape_error(error):
        message = f"its inputs do not fit together: {error}"
        return InputsInvalid(node.id, node.class_type, message)
    if is_out_of_memory(error):
        return OutOfMemory(f"node {node.id} ({node.class_type}): {OutOfMemory.__doc__}")
    return NodeFailed(node.id, node.class_type, f"{type(error).__name__}: {error}")
