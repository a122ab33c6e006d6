"""Continuous batching: one device call serves all waiting requests that have equal batch keys.

Each run in the batch is a generator that yields its new requests and receives their answers. After
each call, the served runs advance. A run can join or leave between any two calls.
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
    activity: ClassVar[ActivityKind] = ActivityKind.CALL
    stage: ClassVar[Stage | None] = None
    rows: int
    """The number of rows that the request takes in a device call."""
    is_urgent: bool = False
    """Whether the request is served before the steps of other runs.

    This is true for most work before the first step of a run, so that the run soon shares calls
    with other runs, and for its first image after the last step.
    """

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Requests with equal keys may run in one call."""

    @classmethod
    @abstractmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        """Return the result or the Exception of each request, in order.

        A raised exception concerns all requests. The batcher then makes smaller calls.
        """


@dataclass(eq=False, slots=True)
class YieldRequest(Request):
    """A request without device work. Its answer comes after the requests before it are served."""

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
"""The generator of a run. It yields new requests and receives the answers to earlier requests."""


@dataclass(eq=False, slots=True)
class BatchedRun:
    """A run in the batch.

    `on_end` is called once when the run ends by itself, with the error that ended it or None.
    """

    execution: Execution
    on_end: Callable[[Exception | None], None]
    is_unbatched: bool = False
    """Whether the run shares no device call with other runs."""
    on_active: OnActive = ignore_active
    stages: StageClock = field(default_factory=StageClock)


@dataclass(eq=False, slots=True, frozen=True)
class _QueuedRequest:
    """A request in the queue, with the `key` and `rows` that it had when it was added."""

    member: BatchedRun
    request: Request
    key: Hashable
    rows: int

    def may_join(self, other: _QueuedRequest) -> bool:
        if type(self.request) is not type(other.request) or self.key != other.key:
            return False
        return self.member is other.member or not (
            self.member.is_unbatched or other.member.is_unbatched
        )


@dataclass(slots=True)
class Batcher:
    """Queues requests, and serves them in device calls.

    A call serves requests with the key of the first request. The other requests of the served runs
    then move to the end of the queue. Requests with `is_urgent` come first, but for at most
    `_MOST_CALLS_AHEAD` calls in a row while other requests wait.
    """

    limits: BatchLimits = field(default_factory=lambda: BatchLimits(32))
    activity: ActivityMonitor = field(default_factory=ActivityMonitor)
    free_memory: Callable[[Stage | None], bool] = lambda _stage: False
    """Frees memory after a call of this stage lacked memory, and returns whether it freed any."""
    _queue: list[_QueuedRequest] = field(default_factory=list)
    _calls_ahead: int = 0
    """The number of calls in a row that began with a request with `is_urgent`."""
    _denoise_key: Hashable = None
    """The key of the last call with the stage DENOISE."""

    @property
    def denoise_rows(self) -> int:
        """The rows that fit into a call like the last denoising call. Any thread may read this."""
        return self.limits.fitting_rows(self._denoise_key)

    @property
    def idle(self) -> bool:
        return not self._queue

    def join(self, member: BatchedRun) -> None:
        """Start a run. The next call may serve its first requests."""
        self._advance(member, None)

    def resume_run(self, member: BatchedRun) -> None:
        """Advance a run that yielded no requests, because its caller has taken a result."""
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
        for member, received in self._serve_next_call().items():
            self._advance(member, received)

    def _serve_next_call(self) -> dict[BatchedRun, list[Answer]]:
        """Make the next call and return its answers by run."""
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

    def _pick(self) -> list[_QueuedRequest]:
        first = self._first()
        candidates = [each for each in self._queue if each.may_join(first)]
        wanted = sum(each.rows for each in candidates)
        free_rows = self.limits.max_rows(first.key, wanted)
        if wanted <= free_rows:
            return candidates
        group: list[_QueuedRequest] = []
        for waiting in _round_robin(candidates):
            if group and waiting.rows > free_rows:
                break
            free_rows -= waiting.rows
            group.append(waiting)
        return group

    def _first(self) -> _QueuedRequest:
        """Return the request whose key the next call has."""
        ahead = next((each for each in self._queue if each.request.is_urgent), None)
        rest = next((each for each in self._queue if not each.request.is_urgent), None)
        if ahead is not None and (rest is None or self._calls_ahead < _MOST_CALLS_AHEAD):
            self._calls_ahead += 1
            return ahead
        assert rest is not None
        self._calls_ahead = 0
        return rest

    def _run(self, group: list[_QueuedRequest]) -> Sequence[Any]:
        """Make the call, and return its results in order.

        The result is empty if memory ran out and a new call may fit. The requests stay in the
        queue.
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
                return _call_device(requests)
        except BaseException as error:  # noqa: BLE001 - the run ends with the error, see `_advance`
            is_full = is_out_of_memory(error)
            if is_full and self.free_memory(requests[0].stage):
                return []
            if len(group) == 1:
                return [_as_exception(error)]
            if is_full:
                self.limits.halve(key, rows)
                return []
        return [self._run_singly(waiting) for waiting in group]

    def _run_singly(self, waiting: _QueuedRequest) -> Any:
        request = waiting.request
        self.activity.begin(request.activity, [waiting.member.on_active])
        try:
            (result,) = _call_device([request])
        except BaseException as error:  # noqa: BLE001 - the run ends with the error
            return _as_exception(error)
        return result

    def _advance(self, member: BatchedRun, answers: list[Answer] | None) -> None:
        self.activity.begin(ActivityKind.NODE, [member.on_active])
        try:
            # Before its first yield, a generator accepts only None, so `answers` is None in the
            # first call.
            fresh = member.execution.send(answers)  # type: ignore[arg-type]
            waiting = [_queued(member, request) for request in fresh]
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


def _queued(member: BatchedRun, request: Request) -> _QueuedRequest:
    """Return the request for the queue. Raises EngineError if its key or its rows are invalid."""
    try:
        key, rows = request.key, index(request.rows)
        hash(key)
    except BaseException as error:
        raise EngineError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error
    return _QueuedRequest(member, request, key, rows)


def _call_device(requests: Sequence[Request]) -> Sequence[Any]:
    """Return the results of a call. Raises ValueError if their number is wrong."""
    kind = type(requests[0])
    results = kind.run_batch(requests)
    if len(results) != len(requests):
        raise ValueError(f"{kind.__name__}: {len(results)} results of {len(requests)} requests")
    return results


def _as_exception(error: BaseException) -> Exception:
    """Return the error as an Exception, because any other error would end the device thread."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _round_robin(candidates: Iterable[_QueuedRequest]) -> list[_QueuedRequest]:
    """Order the requests: the first request of each run, then the second of each run, and so on."""
    turns: dict[BatchedRun, int] = {}
    placed = []
    for waiting in candidates:
        turn = turns.get(waiting.member, 0)
        turns[waiting.member] = turn + 1
        placed.append((turn, waiting))
    return [waiting for _, waiting in sorted(placed, key=itemgetter(0))]
