"""Fairness: the order in which the waiting jobs of an endpoint start.

`WaitingJobs` divides the endpoint between the three priority classes. `DeficitRoundRobin` divides
the share of a class between owners. `RunningJobs` counts the running jobs of owners, for the limit
of running jobs and for the slots that are kept free.

The algorithm is deficit round robin by the cost of jobs (M. Shreedhar, G. Varghese, "Efficient fair
queueing using deficit round robin", 1995), with two changes:

- The cost of a job is charged after the job was chosen. So a job that costs more than one round
  starts at once, and the next job of its owner waits some rounds.
- Each owner has a virtual time instead of a deficit (P. Goyal, H. Vin, H. Cheng, "Start-time fair
  queueing", 1996). A job adds cost / weight to the virtual time of its owner. The round of the
  owner is this time divided by the quantum, rounded down. Rounds without an owner are skipped.

An owner without waiting jobs gains nothing: its virtual time is at least that of the current round
when its next job starts. An owner who submits one job at a time has no advantage either, because
its virtual time is kept until the current round has reached it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile
from typing import Any, Generic, TypeVar

from events.job import Job
from events.store.records import Endpoint
from events.types import Flavour, Priority
from settings.keys import OwnerSettings

T = TypeVar("T", bound=Hashable)

SHARES = {Priority.HIGH: 16.0, Priority.NORMAL: 4.0, Priority.LOW: 1.0}
_LEAST_COST, _MOST_COST = 1.0, 1e9
"""Bounds of a job's cost. Even a trivial job occupies a slot. The upper bound prevents an overflow.
"""
_LEAST_WEIGHT, _MOST_WEIGHT = 0.01, 1000.0
_MEAN_OVER = 64
"""Approximate number of jobs in the mean cost, which is the cost of a job without a cost."""
_FORGET_FROM = 64
"""Smallest number of owners with which `_advance` searches for owners to remove."""


@dataclass(slots=True, eq=False)
class WaitingJob:
    job_id: str
    owner: str
    cost: float | None = None
    """Cost in megapixel-steps, or None if the job states none."""
    weight: float = 1.0
    priority: Priority = Priority.NORMAL
    checkpoint: str | None = None
    warm_wait_began_at: float | None = None
    """Time at which the job began to wait for a warm worker, or None."""
    is_waiting: bool = False
    is_first: bool = False
    """Whether the job was put with `first` (see `DeficitRoundRobin.put`)."""


def waiting_job(job: Job) -> WaitingJob:
    submitted = job.submitted
    weight = 1.0 if submitted.weight is None else submitted.weight
    return WaitingJob(
        job.id,
        submitted.owner,
        cost=None if submitted.cost is None else _bounded_cost(submitted.cost.work),
        weight=min(max(weight, _LEAST_WEIGHT), _MOST_WEIGHT),
        priority=submitted.priority or Priority.NORMAL,
        checkpoint=checkpoint_of(job),
    )


def _bounded_cost(work: float) -> float:
    return min(max(work, _LEAST_COST), _MOST_COST) if math.isfinite(work) else _MOST_COST


def checkpoint_of(job: Job) -> str | None:
    """Return the first checkpoint that the request names, or None. Never raises."""
    request = job.submitted.request
    if job.submitted.flavour is Flavour.DIFFUSION:
        holders = (request.get("override_settings"), request)
        names = [_member(holder, "sd_model_checkpoint") for holder in holders]
    else:
        prompt = request.get("prompt")
        nodes = prompt.values() if isinstance(prompt, Mapping) else ()
        names = [_member(_member(node, "inputs"), "ckpt_name") for node in nodes]
    return next((name for name in names if isinstance(name, str) and name), None)


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


@dataclass(slots=True)
class _PriorityClass:
    owners: DeficitRoundRobin
    share: float
    spent: float = 0.0
    """Cost of the started jobs of the class, divided by its share."""
    had_candidate: bool = False
    """Whether the class had a candidate in the last `_in_order`."""


class WaitingJobs:
    """The waiting jobs of an endpoint, in priority classes.

    The classes high, normal and low share the endpoint by cost as 16, 4 and 1, so no class starves.
    An unused share of a class is left to the others.
    """

    def __init__(self, *, quantum: float, runs_some: Callable[[str], bool]) -> None:
        """See `DeficitRoundRobin` for the arguments."""
        self._classes = {
            priority: _PriorityClass(DeficitRoundRobin(quantum=quantum, runs_some=runs_some), share)
            for priority, share in SHARES.items()
        }
        self._virtual_time = 0.0
        """The largest `spent` of a class just before it was served."""
        self._mean_cost = quantum

    def __len__(self) -> int:
        return sum(len(each.owners) for each in self._classes.values())

    def put(self, job: WaitingJob, *, first: bool = False) -> None:
        """Add a job. See `DeficitRoundRobin.put`."""
        if job.cost is None:
            job.cost = self._mean_cost
        else:
            self._mean_cost += (job.cost - self._mean_cost) / _MEAN_OVER
        self._owners_of(job).put(job, first=first)

    def remove(self, job: WaitingJob) -> None:
        """Remove a job that has not started."""
        self._owners_of(job).remove(job)

    def candidates(self, most: int, *, only_idle: bool = False) -> Iterator[WaitingJob]:
        """Yield up to `most` jobs of each class, in the order in which the classes are served."""
        for each in self._in_order():
            yield from each.owners.candidates(most, only_idle=only_idle)

    def charge(self, job: WaitingJob) -> None:
        """Remove a candidate that starts, and charge its cost to its owner and its class."""
        its_class = self._classes[job.priority]
        its_class.owners.charge(job)
        assert job.cost is not None
        self._virtual_time = max(self._virtual_time, its_class.spent)
        its_class.spent += job.cost / its_class.share

    def refund(self, job: WaitingJob) -> None:
        """Refund the cost of a job that was charged but did not start."""
        its_class = self._classes[job.priority]
        its_class.owners.refund(job)
        assert job.cost is not None
        its_class.spent -= job.cost / its_class.share

    def note_running(self, owner: str) -> None:
        """Note that the number of jobs that an owner runs has changed."""
        for each in self._classes.values():
            each.owners.note_running(owner)

    def hold(self, owner: str) -> None:
        """Offer no job of this owner until `release`."""
        for each in self._classes.values():
            each.owners.hold(owner)

    def release(self, owner: str) -> None:
        for each in self._classes.values():
            each.owners.release(owner)

    def _owners_of(self, job: WaitingJob) -> DeficitRoundRobin:
        return self._classes[job.priority].owners

    def _in_order(self) -> list[_PriorityClass]:
        """Return the classes that have a candidate. The class that has spent least is first."""
        found: list[_PriorityClass] = []
        for each in self._classes.values():
            has_candidate = each.owners.has_candidates
            if has_candidate and not each.had_candidate:
                # A class that had no candidates may have a much lower `spent`. Without this line,
                # only this class would be served until its `spent` has reached the virtual time.
                each.spent = max(each.spent, self._virtual_time)
            each.had_candidate = has_candidate
            if has_candidate:
                found.append(each)
        return sorted(found, key=lambda each: each.spent)


@dataclass(slots=True, eq=False)
class _Owner:
    name: str
    spent: float
    """The virtual time of the owner. See `DeficitRoundRobin.charge`."""
    jobs: deque[WaitingJob] = field(default_factory=deque)
    """The owner's jobs. All except the first may have ended their wait (`is_waiting`)."""
    is_held: bool = False


def _was_put_first(job: WaitingJob) -> bool:
    return job.is_first


class DeficitRoundRobin:
    """The owners of waiting jobs, in the order in which they are served.

    In each round, owners that run nothing come first. Each operation takes constant time, plus the
    time of `Rounds`.
    """

    def __init__(self, *, quantum: float, runs_some: Callable[[str], bool]) -> None:
        """An owner of weight 1 may spend the cost `quantum` in a round.

        `runs_some` returns whether an owner runs a job now.
        """
        self._quantum = quantum
        self._runs_some = runs_some
        self._round = 0
        self._owners: dict[str, _Owner] = {}
        self._idle = Rounds[_Owner]()
        """Owners that run nothing."""
        self._busy = Rounds[_Owner]()
        self._forget_from = _FORGET_FROM
        """Number of owners with which `_advance` searches for owners to remove."""
        self._waiting = 0

    def __len__(self) -> int:
        """Number of waiting jobs."""
        return self._waiting

    def put(self, job: WaitingJob, *, first: bool = False) -> None:
        """Add a job whose cost is set.

        With `first`, the job comes before the owner's jobs without `first`, but after its earlier
        jobs with `first`. So a job that fails repeatedly does not delay the owner's other jobs that
        wait for another attempt.
        """
        owner = self._owners.get(job.owner)
        if owner is None:
            owner = self._owners[job.owner] = _Owner(job.owner, self._virtual_time)
        if first:
            job.is_first = True
            owner.jobs.insert(sum(1 for _ in takewhile(_was_put_first, owner.jobs)), job)
        else:
            owner.jobs.append(job)
        job.is_waiting = True
        self._waiting += 1
        self._enqueue(owner)

    def remove(self, job: WaitingJob) -> None:
        """Remove a job that has not started."""
        self._end_wait(job)
        self._enqueue(self._owners[job.owner])
        self._advance(self._virtual_time)

    def candidates(self, most: int, *, only_idle: bool = False) -> list[WaitingJob]:
        """Return the first job of each of the first `most` owners, in the order of their rounds.

        With `only_idle`, owners that run a job are left out.
        """
        found = self._idle.first(most)
        first_busy = None if only_idle else self._busy.lowest
        # The busy owners are read only if one of them may be among the first `most`.
        if first_busy is not None and (len(found) < most or found[-1][0] > first_busy):
            found = list(merge(found, self._busy.first(most), key=lambda each: each[0]))
        return [owner.jobs[0] for _, owner in islice(found, most)]

    def charge(self, job: WaitingJob) -> None:
        """Remove a candidate that starts, and charge its cost to its owner, who may move to a later
        round.
        """
        owner, price = self._owners[job.owner], self._price(job)
        # The maximum prevents that an owner gains credit in a time without jobs.
        begins = max(owner.spent, self._virtual_time)
        self._end_wait(job)
        self._dequeue(owner)
        owner.spent = begins + price
        # The owner is queued before `_advance`, because it may stay in the current round.
        self._enqueue(owner)
        self._advance(begins)

    def refund(self, job: WaitingJob) -> None:
        """Refund the cost of a job that did not start. Its owner becomes first in its round."""
        if (owner := self._owners.get(job.owner)) is None:
            return
        owner.spent -= self._price(job)
        self._dequeue(owner)
        self._enqueue(owner)
        for rounds in (self._idle, self._busy):
            if owner in rounds:
                rounds.make_first(owner)

    def note_running(self, name: str) -> None:
        """Note that the number of jobs that an owner runs has changed."""
        if (owner := self._owners.get(name)) is None:
            return
        target, other = self._idle, self._busy
        if self._runs_some(name):
            target, other = other, target
        if (round_ := other.remove(owner)) is not None:
            target.add(owner, round_)

    def hold(self, name: str) -> None:
        """Offer no job of this owner until `release`."""
        if (owner := self._owners.get(name)) is not None:
            owner.is_held = True
            self._enqueue(owner)

    def release(self, name: str) -> None:
        owner = self._owners.get(name)
        if owner is not None and owner.is_held:
            owner.is_held = False
            self._enqueue(owner)

    @property
    def has_candidates(self) -> bool:
        return self._next_round is not None

    @property
    def _virtual_time(self) -> float:
        return self._round * self._quantum

    def _price(self, job: WaitingJob) -> float:
        assert job.cost is not None
        return job.cost / job.weight

    @property
    def _next_round(self) -> int | None:
        """The first round that has an owner, or None."""
        rounds = [each.lowest for each in (self._idle, self._busy)]
        return min((each for each in rounds if each is not None), default=None)

    def _end_wait(self, job: WaitingJob) -> None:
        assert job.is_waiting
        job.is_waiting = False
        self._waiting -= 1

    def _enqueue(self, owner: _Owner) -> None:
        """Put the owner into its round if it has a candidate, or remove it from its round."""
        while owner.jobs and not owner.jobs[0].is_waiting:
            owner.jobs.popleft()
        if not owner.jobs or owner.is_held:
            self._dequeue(owner)
            self._forget(owner)
        elif owner not in self._idle and owner not in self._busy:
            round_ = max(int(owner.spent // self._quantum), self._round)
            (self._busy if self._runs_some(owner.name) else self._idle).add(owner, round_)

    def _dequeue(self, owner: _Owner) -> None:
        self._idle.remove(owner)
        self._busy.remove(owner)

    def _advance(self, begins: float) -> None:
        """Advance to the next round that has an owner. If no round has one, advance to the round of
        the virtual time `begins`.
        """
        round_ = self._next_round
        if round_ is None:
            round_ = int(begins // self._quantum)
        if round_ <= self._round:
            return
        self._round = round_
        if len(self._owners) >= self._forget_from:
            for owner in list(self._owners.values()):
                self._forget(owner)
            # The next search takes place after the number of owners has doubled, so the mean time
            # of the searches per new owner is constant.
            self._forget_from = _FORGET_FROM + 2 * len(self._owners)

    def _forget(self, owner: _Owner) -> None:
        """Remove an owner that has no waiting job, is not held and has no debt."""
        if not owner.jobs and not owner.is_held and owner.spent <= self._virtual_time:
            self._owners.pop(owner.name, None)


class Rounds(Generic[T]):
    """Members by the number of their round.

    The time of `first` grows with the number of returned members, and with the number of visited
    rounds times the logarithm of the number of all rounds.
    """

    def __init__(self) -> None:
        self._members: dict[int, OrderedDict[T, None]] = {}
        self._heap: list[int] = []
        """The rounds in `_members`, some of which may be empty."""
        self._round_of: dict[T, int] = {}

    def __contains__(self, member: T) -> bool:
        return member in self._round_of

    def add(self, member: T, number: int) -> None:
        """Append a member to a round. The member must not be in a round."""
        members = self._members.get(number)
        if members is None:
            members = self._members[number] = OrderedDict()
            heapq.heappush(self._heap, number)
        members[member] = None
        self._round_of[member] = number

    def remove(self, member: T) -> int | None:
        """Remove a member. Returns its round, or None if it was in no round."""
        if (number := self._round_of.pop(member, None)) is not None:
            del self._members[number][member]
        return number

    def make_first(self, member: T) -> None:
        """Move a member to the beginning of its round."""
        self._members[self._round_of[member]].move_to_end(member, last=False)

    @property
    def lowest(self) -> int | None:
        """The first round that has a member, or None."""
        while self._heap and not self._members[self._heap[0]]:
            del self._members[heapq.heappop(self._heap)]
        return self._heap[0] if self._heap else None

    def first(self, most: int) -> list[tuple[int, T]]:
        """Return the first `most` members, each with its round."""
        found: list[tuple[int, T]] = []
        passed: list[int] = []
        while len(found) < most and (number := self.lowest) is not None:
            found += [(number, each) for each in islice(self._members[number], most - len(found))]
            if len(found) < most:
                passed.append(heapq.heappop(self._heap))
        for number in passed:
            heapq.heappush(self._heap, number)
        return found


class RunningJobs:
    """Counts the running jobs of all endpoints that this dispatcher has started.

    Jobs of the previous dispatcher do not count, because their owners are unknown.
    """

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._of_endpoint: Counter[tuple[str, str]] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._listeners: set[Callable[[str], None]] = set()

    def count(self, owner: str, endpoint: Endpoint) -> int:
        """Return the number of jobs that the owner runs on the endpoint."""
        return self._of_endpoint[endpoint.id, owner]

    def may_start(self, owner: str) -> bool:
        """Return whether the limit of running jobs lets the owner run another job."""
        most = self._settings.max_running_jobs
        return not most or self._of_owner[owner] < most

    def slots_kept_free(self, endpoint: Endpoint) -> int:
        """Return the number of free slots that are kept for owners who run no job on the endpoint.

        The number is 0 if workers run one job each.
        """
        return self._settings.slots_kept_free if endpoint.jobs_per_worker != 1 else 0

    def add(self, owner: str, endpoint: Endpoint) -> None:
        self._of_endpoint[endpoint.id, owner] += 1
        self._of_owner[owner] += 1

    def remove(self, owner: str, endpoint: Endpoint) -> None:
        self._of_endpoint[endpoint.id, owner] -= 1
        self._of_owner[owner] -= 1
        if not self._of_endpoint[endpoint.id, owner]:
            del self._of_endpoint[endpoint.id, owner]
        if not self._of_owner[owner]:
            del self._of_owner[owner]
        for listener in self._listeners:
            listener(owner)

    @contextmanager
    def notifying(self, listener: Callable[[str], None]) -> Generator[None]:
        """Call `listener` with the owner of each job that ends on any endpoint."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)
