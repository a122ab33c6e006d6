"""Turns: in which order the owners of waiting jobs are served.

Deficit round robin over cost, with debts in the place of credits (M. Shreedhar, G. Varghese,
"Efficient fair queueing using deficit round robin", 1995; a time that follows the starts, as in
P. Goyal, H. Vin, H. Cheng, "Start-time fair queueing", 1996). An owner is served first and pays
then: the cost of each job, by the weight of its key. What an owner has paid says in which turn it
is served next, so the turns of one who spent much are passed over by arithmetic, and a job that
costs more than a turn needs no saving up. No credit is kept by who does not ask for anything. A
debt is kept until its turn has come, so nobody gains by asking for one job at a time.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile

from events.types import Priority

_FORGET_FROM = 64
"""Owners that are kept without a look at who may be forgotten."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A job that waits for a slot."""

    job_id: str
    owner: str
    cost: float | None = None
    """Megapixel-steps; None where nothing says it."""
    weight: float = 1.0
    priority: Priority = Priority.NORMAL
    checkpoint: str | None = None
    passed_at: float | None = None
    """When a slot was first not given to it because its checkpoint was warm elsewhere."""
    is_waiting: bool = False
    is_first: bool = False
    """It was put before those of its owner that have not been tried."""


@dataclass(slots=True, eq=False)
class _Owner:
    name: str
    tag: float
    """What it has paid, in the time of the turns."""
    jobs: deque[Waiting] = field(default_factory=deque)
    """The first one waits; others may have been removed."""
    ring: _Ring | None = None
    is_held: bool = False


def _was_put_first(job: Waiting) -> bool:
    return job.is_first


class _Ring:
    """The owners of one turn, in order; those who run nothing come first."""

    __slots__ = ("busy", "idle")

    def __init__(self) -> None:
        self.idle: OrderedDict[_Owner, None] = OrderedDict()
        self.busy: OrderedDict[_Owner, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.idle or self.busy)


class Turns:
    """Each step takes constant time, but for a heap of the turns in which somebody is served."""

    def __init__(self, *, turn_cost: float, runs_some: Callable[[str], bool]) -> None:
        """`turn_cost`: of a turn of an owner of weight 1. `runs_some`: whether an owner runs a job
        now; see `note_running`.
        """
        self._turn_cost = turn_cost
        self._runs_some = runs_some
        self._turn = 0
        self._owners: dict[str, _Owner] = {}
        self._rings: dict[int, _Ring] = {}
        self._heap: list[int] = []
        """The turns that have a ring, which may be empty."""
        self._waiting = 0

    def __len__(self) -> int:
        """How many jobs wait."""
        return self._waiting

    def put(self, job: Waiting, *, first: bool = False) -> None:
        """`first`: before the others of its owner, but behind those that were put first before it,
        or one that fails again and again would hold up all that failed with it. Its cost is known.
        """
        owner = self._owners.get(job.owner)
        if owner is None:
            owner = self._owners[job.owner] = _Owner(job.owner, self._now)
        if first:
            job.is_first = True
            owner.jobs.insert(sum(1 for _ in takewhile(_was_put_first, owner.jobs)), job)
        else:
            owner.jobs.append(job)
        job.is_waiting = True
        self._waiting += 1
        self._place(owner)

    def remove(self, job: Waiting) -> None:
        """It waits no more, and has not started."""
        self._end_wait(job)
        self._place(self._owners[job.owner])
        self._advance(self._now)

    def candidates(self, most: int, *, only_idle: bool = False) -> list[Waiting]:
        """The first jobs of the first owners, in the order of their turns.

        `only_idle`: of owners who run nothing.
        """
        found: list[Waiting] = []
        for turn in self._turns():
            ring = self._rings[turn]
            for owner in chain(ring.idle, () if only_idle else ring.busy):
                if len(found) == most:
                    return found
                found.append(owner.jobs[0])
        return found

    def take(self, job: Waiting) -> None:
        """A candidate starts: its owner pays, and the turn goes on."""
        owner, cost = self._owners[job.owner], self._price(job)
        begins = max(owner.tag, self._now)
        self._end_wait(job)
        self._leave(owner)
        owner.tag = begins + cost
        self._place(owner)  # before the turn goes on: it may not be over for this owner
        self._advance(begins)

    def refund(self, job: Waiting) -> None:
        """It was taken, and nothing was done for it: its owner is the next one again."""
        if (owner := self._owners.get(job.owner)) is None:
            return
        owner.tag -= self._price(job)
        self._leave(owner)
        self._place(owner)
        if (ring := owner.ring) is not None:
            there = ring.idle if owner in ring.idle else ring.busy
            there.move_to_end(owner, last=False)

    def note_running(self, name: str) -> None:
        """Whether this owner runs some job may have changed."""
        owner = self._owners.get(name)
        if owner is None or owner.ring is None:
            return
        there, other = owner.ring.idle, owner.ring.busy
        if self._runs_some(name):
            there, other = other, there
        if owner in other:
            del other[owner]
            there[owner] = None

    def hold(self, name: str) -> None:
        """No job of this owner is a candidate until `release`."""
        if (owner := self._owners.get(name)) is not None:
            owner.is_held = True
            self._place(owner)

    def release(self, name: str) -> None:
        owner = self._owners.get(name)
        if owner is not None and owner.is_held:
            owner.is_held = False
            self._place(owner)

    @property
    def has_candidates(self) -> bool:
        return next(iter(self._turns()), None) is not None

    @property
    def _now(self) -> float:
        return self._turn * self._turn_cost

    def _price(self, job: Waiting) -> float:
        assert job.cost is not None
        return job.cost / job.weight

    def _turns(self) -> Iterator[int]:
        """Those in which somebody is served, in order. Nothing is to change meanwhile."""
        while self._heap and not self._rings[self._heap[0]]:
            del self._rings[heapq.heappop(self._heap)]
        if self._heap:
            yield self._heap[0]
            yield from (turn for turn in sorted(self._heap)[1:] if self._rings[turn])

    def _end_wait(self, job: Waiting) -> None:
        assert job.is_waiting
        job.is_waiting = False
        self._waiting -= 1

    def _place(self, owner: _Owner) -> None:
        """Into the ring of its turn if it waits for something, and out of it if not."""
        while owner.jobs and not owner.jobs[0].is_waiting:
            owner.jobs.popleft()
        if not owner.jobs or owner.is_held:
            self._leave(owner)
            self._forget(owner)
        elif owner.ring is None:
            turn = max(int(owner.tag // self._turn_cost), self._turn)
            ring = self._rings.get(turn)
            if ring is None:
                ring = self._rings[turn] = _Ring()
                heapq.heappush(self._heap, turn)
            (ring.busy if self._runs_some(owner.name) else ring.idle)[owner] = None
            owner.ring = ring

    def _leave(self, owner: _Owner) -> None:
        if owner.ring is not None:
            owner.ring.idle.pop(owner, None)
            owner.ring.busy.pop(owner, None)
            owner.ring = None

    def _advance(self, begins: float) -> None:
        """To the first turn in which somebody is served; if nobody waits, to that of the start."""
        turn = next(self._turns(), int(begins // self._turn_cost))
        if turn <= self._turn:
            return
        self._turn = turn
        if len(self._owners) > _FORGET_FROM + 2 * self._waiting:
            for owner in list(self._owners.values()):
                self._forget(owner)

    def _forget(self, owner: _Owner) -> None:
        """One that waits for nothing and owes nothing is as good as new."""
        if not owner.jobs and not owner.is_held and owner.tag <= self._now:
            self._owners.pop(owner.name, None)
