"""Continuous batching by step: one device call serves all requests that wait for the same weights.

Each member of the batch is a run: a generator that yields its new requests and receives their
answers. After each call, the served runs advance. A run can join or leave between any
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
    """The number of rows that the request takes in a device call."""
    goes_ahead: bool = False
    """Whether the request is served before the steps of other runs.

    This is true for the work before a run's first step, so that the run soon shares calls with
    other runs. It is also true for the work after the last step.
    """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Requests with equal keys may run in one call."""

    @classmethod
    @abstractmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        """Return the result or the Exception of each request, in order.

        An exception that is raised applies to all requests.
        """


@dataclass(eq=False, slots=True)
class YieldRequest(Request):
    """A request without a device call, which is answered after the requests before it."""

    rows: int = 0

    @property
    def key(self) -> Hashable:
        return self

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[None]:
        return [None for _ in requests]


Answer: TypeAlias = tuple[Request, Any]
"""A request and its result, or the Exception with which the request failed."""
Work: TypeAlias = Generator[Request, Any, T]
"""A generator that yields requests, receives their results and returns a T."""
Execution: TypeAlias = Generator[list[Request], list[Answer], None]
"""A run: it yields its new requests and receives the answers to earlier requests."""


@dataclass(eq=False, slots=True)
class BatchedRun:
    """One run in the batch.

    `on_end` is called once, with the error that ended the run, or with None.
    """

    execution: Execution
    on_end: Callable[[Exception | None], None]
    is_unbatched: bool = False
    """Whether the run shares no device call with other runs."""
    on_active: OnActive = ignore_active
    stages: StageClock = field(default_factory=StageClock)


@dataclass(eq=False, slots=True, frozen=True)
class _Waiting:
    """A request in the queue, and its properties at the time when it was added."""

    member: BatchedRun
    request: Request
    key: Hashable
    rows: int

    def may_join(self, other: _Waiting) -> bool:
        """Whether one call may serve both requests."""
        if type(self.request) is not type(other.request) or self.key != other.key:
            return False
        return self.member is other.member or not (
            self.member.is_unbatched or other.member.is_unbatched
        )


@dataclass(slots=True)
class Batcher:
    """A queue of requests, which are served in device calls.

    A call serves requests with the first request's key. Served runs then go to the end of the
    queue. Requests with `goes_ahead` come first, but for at most `_MOST_CALLS_AHEAD` calls in a row
    while other requests wait.
    """

    limits: BatchLimits = field(default_factory=lambda: BatchLimits(32))
    activity: ActivityMonitor = field(default_factory=ActivityMonitor)
    free_memory: Callable[[Stage | None], bool] = lambda _stage: False
    """Frees memory after a call of that stage ran out of memory. Returns whether memory was freed.
    """
    _queue: list[_Waiting] = field(default_factory=list)
    _calls_ahead: int = 0
    """The number of calls in a row that began with a request with `goes_ahead`."""
    _denoise_key: Hashable = None
    """The key of the last call of a denoising model."""

    @property
    def denoise_rows(self) -> int:
        """The number of rows that fit into a call like the last denoising call.

        Any thread may read this number.
        """
        return self.limits.fitting_rows(self._denoise_key)

    @property
    def idle(self) -> bool:
        """Whether no request waits."""
        return not self._queue

    def join(self, member: BatchedRun) -> None:
        """Start a run. The next call may serve its requests."""
        self._advance(member, None)

    def wake(self, member: BatchedRun) -> None:
        """Advance a run that waits for something other than the device."""
        self._advance(member, [])

    def leave(self, member: BatchedRun) -> None:
        """Remove a run and close its generator, without calling its `on_end`."""
        self._drop_requests(member)
        try:
            member.execution.close()
        except Exception:  # noqa: BLE001 - the other runs go on
            _log.exception("a run did not close", extra={"action": "run_close"})

    def step(self) -> None:
        """Make the next device call, and advance the runs that it serves."""
        for member, received in self._answers().items():
            self._advance(member, received)

    def _answers(self) -> dict[BatchedRun, list[Answer]]:
        """Make the next call and return its answers by run. The batcher keeps no answer."""
        group = self._pick()
        results = self._run(group)
        if not results:
            return {}
        taken, served = set(group), {waiting.member for waiting in group}
        left = [each for each in self._queue if each not in taken]
        self._queue = sorted(left, key=lambda each: each.member in served)
        answers: dict[BatchedRun, list[Answer]] = {}
        call_rows = sum(each.rows for each in group)
        span_links = {each.member.stages.span_link for each in group} - {""}
        for waiting, result in zip(group, results, strict=True):
            waiting.member.stages.end(
                waiting.request.stage,
                rows=waiting.rows,
                call_rows=call_rows,
                span_links=span_links,
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
        """The request that determines the key of the next call."""
        ahead = next((each for each in self._queue if each.request.goes_ahead), None)
        rest = next((each for each in self._queue if not each.request.goes_ahead), None)
        if ahead is not None and (rest is None or self._calls_ahead < _MOST_CALLS_AHEAD):
            self._calls_ahead += 1
            return ahead
        assert rest is not None
        self._calls_ahead = 0
        return rest

    def _run(self, group: list[_Waiting]) -> Sequence[Any]:
        """Return the results in order.

        If memory ran out and was freed, or the row limit was lowered, the result is empty. The
        requests then stay in the queue for another call.
        """
        requests = [waiting.request for waiting in group]
        if isinstance(requests[0], YieldRequest):
            return YieldRequest.run_batch([requests[0]])
        key, rows = group[0].key, sum(each.rows for each in group)
        is_first = self.limits.is_first(key, rows)
        if requests[0].stage is Stage.DENOISE:
            self._denoise_key = key
        kind = ActivityKind.LOAD if is_first else requests[0].activity
        self.activity.begin(kind, [waiting.member.on_active for waiting in group])
        try:
            with self.limits.measured(key, rows):
                return _results(requests)
        except BaseException as error:  # noqa: BLE001 - the run ends with the error, see `_advance`
            is_full = is_out_of_memory(error)
            if is_full and self.free_memory(requests[0].stage):
                return []
            if len(group) == 1:
                return [_of_a_run(error)]
            if is_full:
                self.limits.halve(key, rows)
                return []
        return [self._run_singly(waiting) for waiting in group]

    def _run_singly(self, waiting: _Waiting) -> Any:
        request = waiting.request
        self.activity.begin(request.activity, [waiting.member.on_active])
        try:
            (result,) = _results([request])
        except BaseException as error:  # noqa: BLE001 - the run ends with the error
            return _of_a_run(error)
        return result

    def _advance(self, member: BatchedRun, answers: list[Answer] | None) -> None:
        self.activity.begin(ActivityKind.NODE, [member.on_active])
        try:
            # Before its first yield, a generator accepts only None, so `answers` is None in the
            # first call.
            fresh = member.execution.send(answers)  # type: ignore[arg-type]
            waiting = [_waiting(member, request) for request in fresh]
        except StopIteration:
            member.on_end(None)
        except Exception as error:  # noqa: BLE001 - the run ends with the error, the others go on
            self.leave(member)
            member.on_end(error)
        else:
            for each in waiting:
                member.stages.begin(each.request.stage)
            self._queue += waiting

    def _drop_requests(self, member: BatchedRun) -> None:
        self._queue = [each for each in self._queue if each.member is not member]


def _waiting(member: BatchedRun, request: Request) -> _Waiting:
    """Return the request as an entry of the queue.

    Raises EngineError if the key of the request is not hashable, or the number of its rows is not
    an integer.
    """
    try:
        key, rows = request.key, index(request.rows)
        hash(key)
    except BaseException as error:
        raise EngineError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error
    return _Waiting(member, request, key, rows)


def _results(requests: Sequence[Request]) -> Sequence[Any]:
    """Return the results of a call. Raises EngineError if a request has no result, or several."""
    kind = type(requests[0])
    results = kind.run_batch(requests)
    if len(results) != len(requests):
        raise EngineError(f"{kind.__name__}: {len(results)} results of {len(requests)} requests")
    return results


def _of_a_run(error: BaseException) -> Exception:
    """Return an error that ends only the run.

    An error such as SystemExit would end the device thread, so it is replaced.
    """
    if isinstance(error, Exception):
        return error
    return EngineError(f"{type(error).__name__}: {error}")


def _round_robin(candidates: Iterable[_Waiting]) -> list[_Waiting]:
    """Order the requests: the first request of each run, then the second of each run, and so on."""
    turns: dict[BatchedRun, int] = {}
    placed = []
    for waiting in candidates:
        turn = turns.get(waiting.member, 0)
        turns[waiting.member] = turn + 1
        placed.append((turn, waiting))
    return [waiting for _, waiting in sorted(placed, key=itemgetter(0))]
