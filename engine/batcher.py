"""Continuous batching by step: one device call serves all requests that wait for the same weights.

Each member of the batch is a run: a generator that yields its new requests and receives their
answers. After each call the members that it served advance, so any member can join or leave between
two calls.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import index, itemgetter
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from engine.activity import ActivityKind, ActivityMonitor, OnActive, ignore_active
from engine.batch_limits import BatchLimits
from engine.errors import EngineError, is_out_of_memory
from engine.stages import Stage, StageClock

T = TypeVar("T")

_log = logging.getLogger(__name__)
_MOST_CALLS_AHEAD = 4


class Request(ABC):
    """Device work that a node waits for."""

    activity: ClassVar[ActivityKind] = ActivityKind.CALL
    stage: ClassVar[Stage | None] = None
    rows: int
    """How many rows of a device call it takes."""
    goes_ahead: bool = False
    """Whether it goes ahead of the steps of other runs: what a run needs before its first step, so
    that it joins the next one of the others, and what follows its last.
    """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Requests with equal keys may run in one call."""

    @classmethod
    @abstractmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        """The result of each request in order, or its Exception. Raises if all requests fail."""


@dataclass(eq=False, slots=True)
class Turn(Request):
    """A place in the queue for a run that does without the device now, and gave way to others."""

    rows: int = 0

    @property
    def key(self) -> Hashable:
        return self

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[None]:
        return [None for _ in requests]


Answer: TypeAlias = tuple[Request, Any]
"""A request and its result, or the Exception that it failed with."""
Work: TypeAlias = Generator[Request, Any, T]
"""A generator that yields requests, receives their results and returns a T."""
Execution: TypeAlias = Generator[list[Request], list[Answer], None]
"""A run: it yields its new requests and receives the answers to earlier ones."""


@dataclass(eq=False, slots=True)
class Member:
    """One run in the batch. `on_end` is called once, with the error that ended it or with None."""

    execution: Execution
    on_end: Callable[[Exception | None], None]
    is_alone: bool = False
    """Whether it shares no device call with other runs."""
    on_active: OnActive = ignore_active
    stages: StageClock = field(default_factory=StageClock)


@dataclass(eq=False, slots=True, frozen=True)
class _Waiting:
    """A request in the queue, with what it said when it came."""

    member: Member
    request: Request
    key: Hashable
    rows: int

    def may_join(self, other: _Waiting) -> bool:
        """Whether one call may serve both."""
        if type(self.request) is not type(other.request) or self.key != other.key:
            return False
        return self.member is other.member or not (self.member.is_alone or other.member.is_alone)


@dataclass(slots=True)
class Batcher:
    """Chooses the requests of the next call: those with the key of the first in the queue.

    What begins or ends a run goes ahead of the queue, but only a few calls in a row. What is left
    of the runs that a call served goes to the end of the queue, so that a run of many requests
    keeps no other waiting.
    """

    limits: BatchLimits = field(default_factory=lambda: BatchLimits(32))
    activity: ActivityMonitor = field(default_factory=ActivityMonitor)
    free_memory: Callable[[Stage | None], bool] = lambda _stage: False
    """Makes memory free when it ran out in a call of that stage; returns whether there was any."""
    _queue: list[_Waiting] = field(default_factory=list)
    _calls_ahead: int = 0
    """How many calls in a row have gone ahead of the queue."""
    _denoise_key: Hashable = None
    """Of the last call of a denoising model."""

    @property
    def denoise_rows(self) -> int:
        """How many rows fit into a denoising call like the last one; any thread may ask."""
        return self.limits.fitting_rows(self._denoise_key)

    @property
    def idle(self) -> bool:
        """Whether no request waits."""
        return not self._queue

    def join(self, member: Member) -> None:
        """Start a run. Its requests take part from the next call on."""
        self._advance(member, None)

    def wake(self, member: Member) -> None:
        """Advance a run that waits for something else than the device."""
        self._advance(member, [])

    def leave(self, member: Member) -> None:
        """Remove a run and close its generator, without calling its `on_end`."""
        self._drop_requests(member)
        try:
            member.execution.close()
        except Exception:  # noqa: BLE001 - the others go on
            _log.exception("a run did not close", extra={"action": "run_close"})

    def step(self) -> None:
        """Advance the runs whose requests are next, after the device call that serves them."""
        for member, received in self._answers().items():
            self._advance(member, received)

    def _answers(self) -> dict[Member, list[Answer]]:
        """The answers of the next call, by run. Nothing else holds them."""
        group = self._pick()
        results = self._run(group)
        if not results:
            return {}
        taken, served = set(group), {waiting.member for waiting in group}
        left = [each for each in self._queue if each not in taken]
        self._queue = sorted(left, key=lambda each: each.member in served)
        answers: dict[Member, list[Answer]] = {}
        call_rows = sum(each.rows for each in group)
        names = {each.member.stages.name for each in group} - {""}
        for waiting, result in zip(group, results, strict=True):
            waiting.member.stages.end(
                waiting.request.stage, rows=waiting.rows, call_rows=call_rows, names=names
            )
            answers.setdefault(waiting.member, []).append((waiting.request, result))
        return answers

    def _pick(self) -> list[_Waiting]:
        first = self._first()
        candidates = [each for each in self._queue if each.may_join(first)]
        wanted = sum(each.rows for each in candidates)
        room = self.limits.max_rows(first.key, wanted)
        if wanted <= room:
            return candidates
        group: list[_Waiting] = []
        for waiting in _round_robin(candidates):
            if group and waiting.rows > room:
                break
            room -= waiting.rows
            group.append(waiting)
        return group

    def _first(self) -> _Waiting:
        """The request that the next call is for."""
        ahead = next((each for each in self._queue if each.request.goes_ahead), None)
        rest = next((each for each in self._queue if not each.request.goes_ahead), None)
        if ahead is not None and (rest is None or self._calls_ahead < _MOST_CALLS_AHEAD):
            self._calls_ahead += 1
            return ahead
        assert rest is not None
        self._calls_ahead = 0
        return rest

    def _run(self, group: list[_Waiting]) -> Sequence[Any]:
        """The results in order.

        None at all if memory ran out, and there is more of it now or the next group is smaller.
        """
        requests = [waiting.request for waiting in group]
        if isinstance(requests[0], Turn):
            return Turn.run_batch([requests[0]])
        key, rows = group[0].key, sum(each.rows for each in group)
        is_first = self.limits.is_first(key, rows)
        if requests[0].stage is Stage.DENOISE:
            self._denoise_key = key
        kind = ActivityKind.LOAD if is_first else requests[0].activity
        self.activity.begin(kind, [waiting.member.on_active for waiting in group])
        try:
            with self.limits.measured(key, rows):
                return _results(requests)
        except BaseException as error:  # noqa: BLE001 - its run ends with it, see `_advance`
            is_full = is_out_of_memory(error)
            if is_full and self.free_memory(requests[0].stage):
                return []
            if len(group) == 1:
                return [_of_a_run(error)]
            if is_full:
                self.limits.halve(key, rows)
                return []
        return [self._run_alone(waiting) for waiting in group]

    def _run_alone(self, waiting: _Waiting) -> Any:
        request = waiting.request
        self.activity.begin(request.activity, [waiting.member.on_active])
        try:
            (result,) = _results([request])
        except BaseException as error:  # noqa: BLE001 - its run ends with it
            return _of_a_run(error)
        return result

    def _advance(self, member: Member, answers: list[Answer] | None) -> None:
        self.activity.begin(ActivityKind.NODE, [member.on_active])
        try:
            # Before its first yield, a generator accepts only None.
            fresh = member.execution.send(answers)  # type: ignore[arg-type]
            waiting = [_waiting(member, request) for request in fresh]
        except StopIteration:
            member.on_end(None)
        except Exception as error:  # noqa: BLE001 - the run ends with it, the others go on
            self.leave(member)
            member.on_end(error)
        else:
            for each in waiting:
                member.stages.begin(each.request.stage)
            self._queue += waiting

    def _drop_requests(self, member: Member) -> None:
        self._queue = [each for each in self._queue if each.member is not member]


def _waiting(member: Member, request: Request) -> _Waiting:
    """The request in the queue. Raises EngineError for one that cannot be told from others."""
    try:
        key, rows = request.key, index(request.rows)
        hash(key)
    except BaseException as error:
        raise EngineError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error
    return _Waiting(member, request, key, rows)


def _results(requests: Sequence[Request]) -> Sequence[Any]:
    """The results of a call. Raises EngineError if there is not one for each request."""
    kind = type(requests[0])
    results = kind.run_batch(requests)
    if len(results) != len(requests):
        raise EngineError(f"{kind.__name__}: {len(results)} results of {len(requests)} requests")
    return results


def _of_a_run(error: BaseException) -> Exception:
    """The error as one that ends a run, and not the thread, as SystemExit would."""
    if isinstance(error, Exception):
        return error
    return EngineError(f"{type(error).__name__}: {error}")


def _round_robin(candidates: Iterable[_Waiting]) -> list[_Waiting]:
    """One request of each run before the second of any, so that no run crowds out the others."""
    turns: dict[Member, int] = {}
    placed = []
    for waiting in candidates:
        turn = turns.get(waiting.member, 0)
        turns[waiting.member] = turn + 1
        placed.append((turn, waiting))
    return [waiting for _, waiting in sorted(placed, key=itemgetter(0))]
