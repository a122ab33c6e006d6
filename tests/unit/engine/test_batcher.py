"""Runs share calls, and what the device thread says of its work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import pytest

from engine.activity import Activity, ActivityKind, ActivityMonitor
from engine.batch_limits import BatchLimits
from engine.batcher import BatchedRun, Batcher, Execution, Request
from engine.errors import OutOfMemory
from engine.stages import MOST_SHARED_RUNS, Stage, StageClock


@dataclass(eq=False)
class Fake(Request):
    """Answers its name; `calls` has the names of every group."""

    name: str
    key_: Hashable = "k"
    rows: int = 1
    calls: ClassVar[list[list[str]]] = []

    @property
    def key(self) -> Hashable:
        return self.key_

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        cls.calls.append([request.name for request in requests])
        for request in requests:
            if request.name == "bad":
                raise ValueError("bad")
            if request.name == "full":
                raise OutOfMemory
            if request.name == "starved":
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if len(requests) > 2 and requests[0].key == "small memory":
            raise OutOfMemory
        return [request.name for request in requests]


@pytest.fixture(autouse=True)
def calls() -> list[list[str]]:
    Fake.calls.clear()
    return Fake.calls


def run(*requests: Request) -> Execution:
    """Asks for one after the other."""
    for request in requests:
        ((asked, result),) = yield [request]
        assert asked is request
        if isinstance(result, Exception):
            raise result


def fakes(name: str, steps: int, key: Hashable = "k", rows: int = 1) -> list[Fake]:
    return [Fake(name, key, rows) for _ in range(steps)]


class Ends:
    """Joins runs and notes how they ended."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.ended: dict[str, Exception | None] = {}

    def join(self, name: str, execution: Execution) -> BatchedRun:
        member = BatchedRun(execution, on_end=lambda error: self.ended.setdefault(name, error))
        member.stages.span_link = name
        self.batcher.join(member)
        return member

    def finish(self) -> None:
        while not self.batcher.idle:
            self.batcher.step()


def ended(
    batcher: Batcher | None = None, **requests: Sequence[Request]
) -> dict[str, Exception | None]:
    """How runs end of which each asks for its requests one after the other."""
    ends = Ends(batcher or Batcher())
    for name, each in requests.items():
        ends.join(name, run(*each))
    ends.finish()
    return ends.ended


class Step(Fake):
    stage: ClassVar[Stage | None] = Stage.DENOISE


class Preparation(Fake):
    is_urgent = True


def test_a_run_knows_the_rows_of_its_calls_and_is_in_their_stage() -> None:
    ends = Ends(Batcher())
    longer = ends.join("a", run(Step("a", rows=2), Step("a", rows=2)))
    shorter = ends.join("b", run(Step("b", rows=4)))
    ends.finish()
    assert shorter.stages.rows_per_call == 6
    assert longer.stages.rows_per_call == 3  # calls of 6 and 2 rows
    assert longer.stages.seconds.keys() == {Stage.DENOISE}


def test_a_run_knows_which_others_were_in_its_calls() -> None:
    ends = Ends(Batcher())
    first = ends.join("a", run(Step("a")))
    second = ends.join("b", run(Step("b"), Step("b")))
    ends.join("", run(Step("nobody")))
    ends.batcher.step()
    third = ends.join("c", run(Step("c", key_="another model")))
    ends.finish()
    assert first.stages.runs_in_shared_calls == second.stages.runs_in_shared_calls == {"a", "b"}
    assert third.stages.runs_in_shared_calls == {"c"}


def test_a_run_keeps_no_more_than_so_many_names() -> None:
    clock = StageClock()
    for number in range(1000):
        clock.begin(Stage.DENOISE)
        clock.end(Stage.DENOISE, rows=1, call_rows=2, span_links={str(number), "own"})
    assert len(clock.runs_in_shared_calls) <= MOST_SHARED_RUNS + 1


def test_runs_share_calls_and_join_and_leave_at_any_step(calls: list[list[str]]) -> None:
    ends = Ends(Batcher())
    ends.join("a", run(*fakes("a", 3)))
    ends.batcher.step()
    ends.join("b", run(*fakes("b", 3)))
    ends.finish()
    assert [sorted(call) for call in calls] == [["a"], ["a", "b"], ["a", "b"], ["b"]]
    assert ends.ended == {"a": None, "b": None}


def test_requests_of_unlike_key_take_turns_oldest_first(calls: list[list[str]]) -> None:
    ended(a=fakes("a", 3, key="1"), b=fakes("b", 3, key="2"), c=fakes("c", 3, key="1"))
    assert [sorted(call) for call in calls] == [["a", "c"], ["b"]] * 3


def test_a_run_that_prepares_joins_the_next_step_of_the_others(calls: list[list[str]]) -> None:
    ends = Ends(Batcher())
    ends.join("a", run(*fakes("a", 3)))
    ends.batcher.step()
    ends.join("b", run(Preparation("load", "l"), Preparation("text", "t"), *fakes("b", 2)))
    ends.finish()
    assert [sorted(call) for call in calls] == [["a"], ["load"], ["text"], ["a", "b"], ["a", "b"]]


def test_runs_that_only_prepare_keep_no_steps_of_others_back(calls: list[list[str]]) -> None:
    ends = Ends(Batcher())
    ends.join("a", run(*fakes("a", 3)))
    for name in "bc":
        ends.join(name, run(*(Preparation(name, f"{name}{number}") for number in range(20))))
    ends.finish()
    steps = [number for number, call in enumerate(calls) if call == ["a"]]
    assert max(later - earlier for earlier, later in pairwise([-1, *steps])) <= 5


def test_a_call_takes_no_more_than_max_rows_and_nobody_starves(calls: list[list[str]]) -> None:
    ended(Batcher(BatchLimits(4)), **{name: fakes(name, 4, rows=2) for name in "abcde"})
    assert all(len(call) <= 2 for call in calls)
    for name in "abcde":
        at = [number for number, call in enumerate(calls) if name in call]
        assert max(later - earlier for earlier, later in pairwise(at)) <= 3


def test_a_run_of_many_requests_crowds_no_other_out(calls: list[list[str]]) -> None:
    def many() -> Execution:
        for _ in range(3):
            yield fakes("many", 20)

    ends = Ends(Batcher(BatchLimits(4)))
    ends.join("many", many())
    ends.join("one", run(*fakes("one", 3)))
    ends.finish()
    assert all("one" in call for call in calls[:3])
    assert ends.ended == {"many": None, "one": None}


def test_a_run_of_many_requests_that_share_no_call_waits_its_turn(calls: list[list[str]]) -> None:
    def many() -> Execution:
        left: set[Request] = {Fake("many", number) for number in range(20)}
        answers = yield list(left)
        while left := left - {request for request, _ in answers}:
            answers = yield []

    ends = Ends(Batcher())
    ends.join("many", many())
    ends.join("one", run(*fakes("one", 3)))
    ends.finish()
    assert calls[:6] == [["many"], ["one"]] * 3
    assert ends.ended == {"many": None, "one": None}


def test_a_request_larger_than_the_row_limit_runs_alone(calls: list[list[str]]) -> None:
    ended(Batcher(BatchLimits(4)), big=fakes("big", 1, rows=9), a=fakes("a", 1))
    assert calls == [["big"], ["a"]]


def test_only_the_guilty_run_fails(calls: list[list[str]]) -> None:
    found = ended(a=fakes("a", 2), bad=fakes("bad", 2), b=fakes("b", 2))
    assert isinstance(found.pop("bad"), ValueError)
    assert found == {"a": None, "b": None}
    assert calls == [["a", "bad", "b"], ["a"], ["bad"], ["b"], ["a", "b"]]


def test_a_group_that_is_too_large_is_made_smaller_and_stays_so(calls: list[list[str]]) -> None:
    found = ended(**{name: fakes(name, 2, key="small memory") for name in "abcd"})
    assert set(found.values()) == {None}
    assert [len(call) for call in calls] == [4, 2, 2, 2, 2]


def test_a_run_that_alone_is_too_large_fails_alone() -> None:
    found = ended(a=fakes("a", 2), full=fakes("full", 1))
    assert found["a"] is None
    assert isinstance(found["full"], OutOfMemory)


def test_memory_is_freed_before_calls_become_smaller(calls: list[list[str]]) -> None:
    freed = iter([True, False])
    batcher = Batcher(free_memory=lambda _stage: next(freed))
    found = ended(batcher, **{name: fakes(name, 1, key="small memory") for name in "abc"})
    assert set(found.values()) == {None}
    assert [len(call) for call in calls] == [3, 3, 1, 1, 1]


def test_memory_is_freed_for_requests_that_raise_what_torch_does(calls: list[list[str]]) -> None:
    freed = iter([True, False])
    found = ended(Batcher(free_memory=lambda _stage: next(freed)), starved=fakes("starved", 1))
    assert isinstance(found["starved"], RuntimeError)
    assert calls == [["starved"], ["starved"]]


def test_leaving_closes_the_run_and_forgets_its_requests(calls: list[list[str]]) -> None:
    closed = []

    def watched() -> Execution:
        try:
            yield from run(*fakes("a", 9))
        finally:
            closed.append(True)

    ends = Ends(Batcher())
    member = ends.join("a", watched())
    ends.join("b", run(*fakes("b", 2)))
    ends.batcher.step()
    ends.batcher.leave(member)
    ends.finish()
    assert closed == [True]
    assert calls == [["a", "b"], ["b"]]
    assert ends.ended == {"b": None}


def test_several_requests_of_one_run_are_answered_together(calls: list[list[str]]) -> None:
    received: list[Any] = []

    def both() -> Execution:
        received.extend((yield [Fake("x"), Fake("y")]))

    ends = Ends(Batcher())
    ends.join("a", both())
    ends.finish()
    assert [result for _, result in received] == ["x", "y"]
    assert calls == [["x", "y"]]


def test_a_run_that_asks_for_it_shares_no_call(calls: list[list[str]]) -> None:
    ends = Ends(Batcher())
    ends.join("a", run(*fakes("a", 2)))
    ends.batcher.join(BatchedRun(run(*fakes("lone", 2)), lambda _: None, is_unbatched=True))
    ends.join("b", run(*fakes("b", 2)))
    ends.finish()
    assert calls == [["a", "b"], ["lone"], ["a", "b"], ["lone"]]


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

        batcher.join(BatchedRun(run(), lambda _: None, on_active=set_active))

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
