"""Which nodes the executor starts when, and what is alive meanwhile, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import pytest

from engine import executor
from engine.batcher import Answer, BatchedRun, Batcher, Execution, Request, YieldRequest
from engine.executor import Executor
from engine.graph.cost import Cost
from engine.graph.graph import Graph, Node, Source

CONTEXT = cast("Any", object())
MIB = 2**20


@dataclass(eq=False)
class Call(Request):
    """A device call; `group_sizes` has how many shared each."""

    rows: int = 1
    group_sizes: ClassVar[list[int]] = []

    @property
    def key(self) -> str:
        return "call"

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[None]:
        cls.group_sizes.append(len(requests))
        return [None for _ in requests]


class Image:
    """Counts how many of it are alive."""

    alive = 0
    most_alive = 0

    def __init__(self) -> None:
        Image.alive += 1
        Image.most_alive = max(Image.most_alive, Image.alive)

    def __del__(self) -> None:
        Image.alive -= 1


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    Image.alive = Image.most_alive = 0
    Call.group_sizes.clear()


def make(_: object) -> tuple[Image]:
    return (Image(),)


def on_device(_: object, **images: Image) -> Iterator[Any]:
    yield Call()
    return (Image(),)


def save(_: object, image: Image) -> list[Image]:
    return []


BODIES = cast("Any", {"Make": make, "OnDevice": on_device, "Save": save})


def chains(count: int, *class_types: str, prefix: str = "") -> tuple[Node, ...]:
    """Chains beside each other, made of nodes of these types and a Save; all first nodes first."""
    nodes = []
    for depth, class_type in enumerate((*class_types, "Save")):
        for number in range(count):
            name = f"{prefix}{number}"
            links = {"image": Source(f"{name}.{depth - 1}", 0)} if depth else {}
            is_output = class_type == "Save"
            nodes.append(Node(f"{name}.{depth}", class_type, {}, links, is_output))
    return tuple(nodes)


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def execution_of(graph: Graph, **options: Any) -> Execution:
    return Executor(
        graph, CONTEXT, **{"on_output": lambda *_: None, **options}, bodies=BODIES
    ).run()


def run(graph: Graph) -> None:
    batcher = Batcher()
    batcher.join(BatchedRun(execution_of(graph), _raise))
    while not batcher.idle:
        batcher.step()


def sized(nodes: tuple[Node, ...], live_bytes: int, node_bytes: Mapping[str, int]) -> Graph:
    return Graph(nodes, cost=Cost(live_bytes=live_bytes), node_bytes=node_bytes)


def test_each_image_is_saved_before_the_next_one_is_made() -> None:
    run(Graph(chains(500, "Make")))
    assert (Image.most_alive, Image.alive) == (1, 0)


def test_chains_that_wait_for_the_device_hold_no_more_than_the_estimate() -> None:
    nodes = chains(40, "Make", "OnDevice")
    sizes = {node.id: 100 * MIB for node in nodes if node.class_type != "Save"}
    graph = sized(nodes, 200 * MIB, sizes)
    run(graph)
    assert 2 <= Image.most_alive * 100 * MIB <= graph.need_bytes
    assert Image.alive == 0


def test_small_chains_wait_for_the_device_together() -> None:
    nodes = chains(8, "Make", "OnDevice")
    run(sized(nodes, 2000, {node.id: 1000 for node in nodes if node.class_type != "Save"}))
    # As many as live_bytes, fourfold, holds ahead, beside the chain whose turn it is.
    assert Call.group_sizes == [5, 3]


def answers_of(requests: list[Request]) -> list[Answer]:
    return [(request, None) for request in requests]


def test_host_work_gives_way_and_keeps_requests_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_TURN_S", 0.0)
    nodes = (*chains(1, "OnDevice"), *chains(3, "Make", prefix="x"))
    execution = execution_of(Graph(nodes))
    requests = next(execution)
    turns = 0
    while isinstance(requests[0], YieldRequest):
        assert len(requests) == 1
        turns += 1
        requests = execution.send(answers_of(requests))
    assert turns == 6
    assert [type(request) for request in requests] == [Call]
    with pytest.raises(StopIteration):
        execution.send(answers_of(requests))


def test_no_node_starts_while_results_must_be_taken_first() -> None:
    told: list[str] = []
    execution = execution_of(
        Graph(chains(3, "Make")),
        on_output=lambda node_id, _: told.append(node_id),
        is_full=lambda: len(told) >= taken + 1,
    )
    taken = 0
    assert next(execution) == []
    assert (told, Image.alive) == (["0.1"], 0)
    assert execution.send([]) == []
    assert len(told) == 1
    taken = 1
    assert execution.send([]) == []
    assert len(told) == 2
    taken = 2
    with pytest.raises(StopIteration):
        execution.send([])
    assert len(told) == 3


def test_a_long_chain_and_calls_of_others_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_TURN_S", 0.0)
    ended: list[str] = []
    batcher = Batcher()
    for name, nodes in (
        ("chain", chains(900, "Make")),
        ("small", chains(1, "OnDevice", "OnDevice")),
    ):
        execution = execution_of(Graph(nodes))
        batcher.join(BatchedRun(execution, lambda _, name=name: ended.append(name)))
    steps = 0
    while "small" not in ended:
        batcher.step()
        steps += 1
    assert steps < 12
    while not batcher.idle:
        batcher.step()
    assert ended == ["small", "chain"]
