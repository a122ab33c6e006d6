"""Step-level continuous batching: one device call for all rows that wait for the same weights.

Every member (a run) is a generator that yields the requests it newly waits for and receives their
answers. After each call the members concerned move on, so they join and leave between any two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Self, TypeAlias, TypeVar

from engine.batch_limits import RowLimits
from engine.errors import OutOfMemory

T = TypeVar("T")


class Request(ABC):
    """Device work that a node waits for."""

    rows: int
    """How much of the row limit it takes."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Requests of one key may run as one call."""

    @classmethod
    @abstractmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        """The result, or an Exception, of each request in order; raises if all failed."""


Answer: TypeAlias = tuple[Request, Any]
"""A request and its result, or the Exception that it ended with."""
Work: TypeAlias = Generator[Request, Any, T]
"""A node's body that waits for requests."""
Execution: TypeAlias = Generator[list[Request], list[Answer], None]
"""A run: yields the requests that are new, receives the answers that have come."""


@dataclass(eq=False, slots=True)
class Member:
    """One run in the batch. `on_end` gets the error that ended it, or None, exactly once."""

    execution: Execution
    on_end: Callable[[Exception | None], None]
    is_alone: bool = False
    """Shares no call with other runs."""


@dataclass(eq=False, slots=True, frozen=True)
class _Waiting:
    member: Member
    request: Request

    def may_join(self, other: _Waiting) -> bool:
        """Whether one call may answer both."""
        if self.request.key != other.request.key:
            return False
        return self.member is other.member or not (self.member.is_alone or other.member.is_alone)


@dataclass(slots=True)
class Batcher:
    """Picks which requests run next: those of the key whose oldest request waits longest."""

    limits: RowLimits = field(default_factory=lambda: RowLimits(32))
    _queue: list[_Waiting] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Nothing waits."""
        return not self._queue

    def join(self, member: Member) -> None:
        """Start a run; it takes part from the next call on."""
        self._advance(member, None)

    def leave(self, member: Member) -> None:
        """Drop a run without ending it: its requests are forgotten, its generators closed."""
        self._forget(member)
        member.execution.close()

    def step(self) -> None:
        """One device call, and the runs it concerns moved on."""
        group = self._pick()
        results = self._run(group)
        taken = set(group) if results else set()
        self._queue = [each for each in self._queue if each not in taken]
        answers: dict[Member, list[Answer]] = {}
        for waiting, result in zip(group, results, strict=False):
            answers.setdefault(waiting.member, []).append((waiting.request, result))
        for member, received in answers.items():
            self._advance(member, received)

    def _pick(self) -> list[_Waiting]:
        first = self._queue[0]
        room = self.limits.rows_of(first.request.key)
        group: list[_Waiting] = []
        for waiting in _taking_turns(each for each in self._queue if each.may_join(first)):
            if group and waiting.request.rows > room:
                break
            room -= waiting.request.rows
            group.append(waiting)
        return group

    def _run(self, group: list[_Waiting]) -> Sequence[Any]:
        """The results; none where the group was too large for the memory: it is picked anew."""
        requests = [waiting.request for waiting in group]
        key, rows = requests[0].key, sum(each.rows for each in requests)
        try:
            with self.limits.measured(key, rows):
                return type(requests[0]).run_batch(requests)
        except Exception as error:  # noqa: BLE001 - the guilty run ends with it, see `_advance`
            if len(group) == 1:
                return [error]
            if isinstance(error, OutOfMemory):
                self.limits.cut(key, rows)
                return []
        return [_run_alone(request) for request in requests]

    def _advance(self, member: Member, answers: list[Answer] | None) -> None:
        try:
            # A generator takes nothing but None before its first yield.
            fresh = member.execution.send(answers)  # type: ignore[arg-type]
        except StopIteration:
            member.on_end(None)
        except Exception as error:  # noqa: BLE001 - the run ends with it, the others go on
            self._forget(member)
            member.on_end(error)
        else:
            self._queue.extend(_Waiting(member, request) for request in fresh)

    def _forget(self, member: Member) -> None:
        self._queue = [each for each in self._queue if each.member is not member]


def _taking_turns(candidates: Iterable[_Waiting]) -> list[_Waiting]:
    """One of each run before the second of any, so that a run of many samplers crowds none out."""
    turns: dict[Member, int] = {}
    placed = []
    for waiting in candidates:
        turn = turns.get(waiting.member, 0)
        turns[waiting.member] = turn + 1
        placed.append((turn, waiting))
    return [waiting for _, waiting in sorted(placed, key=itemgetter(0))]


def _run_alone(request: Request) -> Any:
    try:
        (result,) = type(request).run_batch([request])
    except Exception as error:  # noqa: BLE001 - the guilty run ends with it
        return error
    return result
