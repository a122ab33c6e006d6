"""WaitingJobs: the waiting jobs of an endpoint, in classes that share its workers.

The classes share by cost, high, normal and low as 16, 4 and 1: so none starves, and what a class
does not use goes to the others. Within a class each owner gets its turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from actors.waiting.turns import Turns, Waiting
from actors.worker.plan import checkpoint_of
from events.job import Job
from events.types import Priority

SHARES = {Priority.HIGH: 16.0, Priority.NORMAL: 4.0, Priority.LOW: 1.0}
_LEAST_COST, _MOST_COST = 1.0, 1e9
"""A job takes a slot, however little it does. Nothing that an event says ends the arithmetic."""
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 1000.0
_MEAN_OVER = 64
"""About how many jobs say what one costs that does not say it."""


@dataclass(slots=True)
class _Class:
    turns: Turns
    share: float
    tag: float = 0.0
    """What its jobs have cost, by its share."""
    was_asking: bool = False
    """It had a job that may start, at the last look."""


class WaitingJobs:
    def __init__(self, *, turn_cost: float, runs_some: Callable[[str], bool]) -> None:
        """See `Turns`."""
        self._classes = {
            priority: _Class(Turns(turn_cost=turn_cost, runs_some=runs_some), share)
            for priority, share in SHARES.items()
        }
        self._time = 0.0
        """The tag of the class that was served last."""
        self._mean_cost = turn_cost

    def __len__(self) -> int:
        return sum(len(each.turns) for each in self._classes.values())

    def put(self, job: Waiting, *, first: bool = False) -> None:
        """`first`: before all others of its owner, as after an attempt that failed."""
        if job.cost is None:
            job.cost = self._mean_cost
        else:
            self._mean_cost += (job.cost - self._mean_cost) / _MEAN_OVER
        self._turns_of(job).put(job, first=first)

    def remove(self, job: Waiting) -> None:
        """It waits no more, and has not started."""
        self._turns_of(job).remove(job)

    def candidates(self, most: int, *, only_idle: bool = False) -> Iterator[Waiting]:
        """Of each class `most` jobs, that of the class whose turn it is first. See `Turns`."""
        for each in self._in_order():
            yield from each.turns.candidates(most, only_idle=only_idle)

    def take(self, job: Waiting) -> None:
        """A candidate starts."""
        its_class = self._classes[job.priority]
        its_class.turns.take(job)
        assert job.cost is not None
        self._time = max(self._time, its_class.tag)
        its_class.tag += job.cost / its_class.share

    def refund(self, job: Waiting) -> None:
        """It was taken, and nothing was done for it."""
        its_class = self._classes[job.priority]
        its_class.turns.refund(job)
        assert job.cost is not None
        its_class.tag -= job.cost / its_class.share

    def note_running(self, owner: str) -> None:
        for each in self._classes.values():
            each.turns.note_running(owner)

    def hold(self, owner: str) -> None:
        for each in self._classes.values():
            each.turns.hold(owner)

    def release(self, owner: str) -> None:
        for each in self._classes.values():
            each.turns.release(owner)

    def _turns_of(self, job: Waiting) -> Turns:
        return self._classes[job.priority].turns

    def _in_order(self) -> list[_Class]:
        """One that asks again does so from now on: it has saved nothing up."""
        asking: list[_Class] = []
        for each in self._classes.values():
            is_asking = each.turns.has_candidates
            if is_asking and not each.was_asking:
                each.tag = max(each.tag, self._time)
            each.was_asking = is_asking
            if is_asking:
                asking.append(each)
        return sorted(asking, key=lambda each: each.tag)


def waiting_of(job: Job) -> Waiting:
    submitted = job.submitted
    weight = 1.0 if submitted.weight is None else submitted.weight
    return Waiting(
        job.id,
        submitted.owner,
        cost=None if submitted.cost is None else _bounded_cost(submitted.cost.work),
        weight=min(max(weight, _LEAST_WEIGHT), _MOST_WEIGHT),
        priority=submitted.priority or Priority.NORMAL,
        checkpoint=checkpoint_of(job),
    )


def _bounded_cost(work: float) -> float:
    return min(max(work, _LEAST_COST), _MOST_COST) if math.isfinite(work) else _MOST_COST
