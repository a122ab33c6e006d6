"""What the device thread says of its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from engine.activity import Activity, ActivityKind, ActivityMonitor
from engine.batcher import Batcher, Execution, Member, Request


class Watched:
    """A run that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def set_active(self, is_active: bool) -> None:
        self.told.append(is_active)


def test_the_count_moves_with_all_that_is_done() -> None:
    monitor = ActivityMonitor()
    assert monitor.now == Activity(0, ActivityKind.IDLE)
    monitor.begin(ActivityKind.NODE, ())
    monitor.move()
    assert monitor.now == Activity(2, ActivityKind.NODE)
    monitor.begin(ActivityKind.LOAD, ())
    assert monitor.now == Activity(3, ActivityKind.LOAD)
    monitor.rest()
    assert monitor.now == Activity(4, ActivityKind.IDLE)


def test_a_run_is_told_only_when_the_device_comes_to_it_and_when_it_leaves() -> None:
    monitor = ActivityMonitor()
    one, other = Watched(), Watched()
    for _ in range(3):
        monitor.begin(ActivityKind.CALL, [one.set_active])
    assert (one.told, other.told) == ([True], [])
    monitor.begin(ActivityKind.CALL, [one.set_active, other.set_active])
    assert (one.told, other.told) == ([True], [True])
    monitor.begin(ActivityKind.NODE, [other.set_active])
    monitor.rest()
    assert (one.told, other.told) == ([True, False], [True, False])


@dataclass(eq=False)
class Ask(Request):
    """Notes who is active during its call, and with what kind of work."""

    watch: Callable[[], object]
    fails: bool = False
    rows: int = 1

    @property
    def key(self) -> str:
        return "ask"

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[None]:
        requests[0].watch()
        if any(request.fails for request in requests):
            raise ValueError("bad")
        return [None for _ in requests]


def test_a_run_is_active_in_its_calls_and_while_its_nodes_run() -> None:
    batcher = Batcher()
    seen: list[tuple[ActivityKind, set[str]]] = []
    active: set[str] = set()

    def watch() -> None:
        seen.append((batcher.activity.now.kind, set(active)))

    def join(name: str, *requests: Ask) -> None:
        def run() -> Execution:
            watch()
            for request in requests:
                yield [request]

        def set_active(is_active: bool) -> None:
            (active.add if is_active else active.remove)(name)

        batcher.join(Member(run(), lambda _: None, on_active=set_active))

    join("one", Ask(watch), Ask(watch))
    join("other", Ask(watch, fails=True), Ask(watch))
    batcher.step()
    batcher.step()
    node, call = ActivityKind.NODE, ActivityKind.CALL
    assert seen == [
        (node, {"one"}),
        (node, {"other"}),
        (ActivityKind.LOAD, {"one", "other"}),  # the first of its kind
        (call, {"one"}),  # it failed, so each is called for alone
        (call, {"other"}),
        (call, {"one", "other"}),
    ]
    batcher.activity.rest()
    assert active == set()
