"""The executor with nodes of its own, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast
from weakref import ref

import pytest

from engine import executor
from engine.batcher import Execution, Request, Work
from engine.errors import NodeFailed, OutOfMemory
from engine.executor import Executor
from engine.graph.graph import Graph, Node, Source

CONTEXT = cast("Any", object())


@pytest.fixture(autouse=True)
def _one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run gives way to no other, however slow the machine is."""
    monkeypatch.setattr(executor, "_TURN_S", 3600.0)


@dataclass(eq=False)
class Ask(Request):
    name: str
    rows: int = 1

    @property
    def key(self) -> str:
        return "ask"

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[str]:
        raise AssertionError("these tests answer themselves")


def ask(_: object, name: str, **after: Any) -> Work[tuple[str]]:
    first = yield Ask(name)
    return (first,)


def plain(_: object, name: str) -> tuple[str]:
    return (name,)


def fails(_: object, **inputs: Any) -> tuple[str]:
    raise ValueError("broken")


def save(_: object, value: str) -> list[str]:
    return [value]


BODIES = {"Ask": ask, "Plain": plain, "Fails": fails, "Save": save}


def node(node_id: str, class_type: str, *sources: str) -> Node:
    if class_type == "Save":
        links = {"value": Source(sources[0], 0)}
        return Node(node_id, class_type, {}, links, is_output=True)
    links = {f"after{number}": Source(source, 0) for number, source in enumerate(sources)}
    return Node(node_id, class_type, {"name": node_id}, links)


def started(
    *nodes: Node, context: object = CONTEXT, **bodies: Callable[..., Any]
) -> tuple[Execution, dict[str, Any]]:
    """The execution of a graph, and the results of its outputs. `bodies` are more of them."""
    outputs: dict[str, Any] = {}
    every = cast("Any", {**BODIES, **bodies})
    given = cast("Any", context)
    execution = Executor(Graph(nodes), given, on_output=outputs.__setitem__, bodies=every).run()
    return execution, outputs


def names(requests: Sequence[Request]) -> list[str]:
    return [cast("Ask", request).name for request in requests]


def test_nodes_that_are_ready_wait_together_and_the_rest_follows() -> None:
    execution, outputs = started(
        node("a", "Ask"),
        node("b", "Ask"),
        node("c", "Ask", "a", "b"),
        node("s", "Save", "c"),
        node("t", "Save", "a"),
    )
    first = next(execution)
    assert names(first) == ["a", "b"]
    assert names(execution.send([(first[0], "A")])) == []
    assert outputs == {"t": ["A"]}
    second = execution.send([(first[1], "B")])
    assert names(second) == ["c"]
    with pytest.raises(StopIteration):
        execution.send([(second[0], "C")])
    assert outputs == {"t": ["A"], "s": ["C"]}


def test_each_start_and_end_of_a_node_is_told() -> None:
    told: list[None] = []
    nodes = (node("a", "Plain"), node("b", "Ask", "a"), node("s", "Save", "b"))
    execution = Executor(
        Graph(nodes),
        CONTEXT,
        on_output=lambda *_: None,
        on_node=lambda: told.append(None),
        bodies=cast("Any", BODIES),
    ).run()
    (request,) = next(execution)
    assert len(told) == 3
    with pytest.raises(StopIteration):
        execution.send([(request, "B")])
    assert len(told) == 6


def test_a_failing_body_is_named() -> None:
    execution, _ = started(node("a", "Fails"), node("s", "Save", "a"))
    with pytest.raises(NodeFailed, match=r"node a \(Fails\): ValueError: broken"):
        next(execution)


def test_a_failing_estimate_is_named() -> None:
    class Meter:
        def start(self, _node: Node) -> None:
            raise ZeroDivisionError("broken")

    given: Any = {"meter": Meter(), "bodies": BODIES, "on_output": print}
    graph = Graph((node("a", "Plain"), node("s", "Save", "a")))
    execution = Executor(graph, cast("Any", CONTEXT), **given).run()
    with pytest.raises(NodeFailed, match=r"node a \(Plain\): ZeroDivisionError: broken"):
        next(execution)


def test_an_engine_error_passes_as_it_is() -> None:
    execution, _ = started(node("a", "Ask"), node("s", "Save", "a"))
    (request,) = next(execution)
    with pytest.raises(OutOfMemory, match="lower"):
        execution.send([(request, OutOfMemory())])


class Memory:
    """A context whose models can be dropped `times` times."""

    def __init__(self, times: int = 0) -> None:
        self.times = times

    def free_memory(self) -> bool:
        self.times -= 1
        return self.times >= 0


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_a_body_that_runs_out_of_memory_fails_the_run_with_what_to_do(error: Exception) -> None:
    def full(_: object, name: str) -> tuple[str]:
        raise error

    nodes = (node("a", "Full"), node("s", "Save", "a"))
    execution, _ = started(*nodes, context=Memory(), Full=full)
    with pytest.raises(OutOfMemory, match=r"node a \(Full\): .* lower the width"):
        next(execution)


def test_a_body_that_runs_out_of_memory_is_tried_again_as_long_as_models_can_be_dropped() -> None:
    def tight(context: Memory, name: str) -> tuple[str]:
        if context.times:
            raise MemoryError
        return (name,)

    nodes = (node("a", "Tight"), node("s", "Save", "a"))
    execution, outputs = started(*nodes, context=Memory(times=2), Tight=tight)
    with pytest.raises(StopIteration):
        next(execution)
    assert outputs == {"s": ["a"]}


def test_closing_closes_the_nodes_in_flight() -> None:
    closed: list[str] = []

    def watched(_: object, name: str) -> Work[tuple[str]]:
        try:
            yield Ask(name)
        finally:
            closed.append(name)
        return (name,)

    nodes = (node("a", "Watched"), node("b", "Watched"), node("c", "Ask", "a", "b"))
    nodes += (node("s", "Save", "c"),)
    execution, _ = started(*nodes, Watched=watched)
    next(execution)
    execution.close()
    assert sorted(closed) == ["a", "b"]


def test_an_output_is_let_go_once_its_last_reader_has_ended() -> None:
    class Value:
        pass

    made: list[ref[Value]] = []

    def make(_: object, name: str) -> tuple[Value]:
        value = Value()
        made.append(ref(value))
        return (value,)

    nodes = (node("a", "Make"), node("b", "Ask", "a"), node("c", "Ask", "a", "b"))
    nodes += (node("d", "Ask", "c"), node("s", "Save", "d"))
    execution, _ = started(*nodes, Make=make)
    (request,) = next(execution)
    (request,) = execution.send([(request, "B")])
    assert made[0]() is not None
    execution.send([(request, "C")])
    assert made[0]() is None
