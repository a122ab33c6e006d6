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

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile

from actors.waiting.rings import Rings
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
    is_held: bool = False


def _was_put_first(job: Waiting) -> bool:
    return job.is_first


class Turns:
    """Each step takes constant time, but for heaps of the turns in which somebody is served.

    In a turn those who run nothing come first.
    """

    def __init__(self, *, turn_cost: float, runs_some: Callable[[str], bool]) -> None:
        """`turn_cost`: of a turn of an owner of weight 1. `runs_some`: whether an owner runs a job
        now; see `note_running`.
        """
        self._turn_cost = turn_cost
        self._runs_some = runs_some
        self._turn = 0
        self._owners: dict[str, _Owner] = {}
        self._idle = Rings[_Owner]()
        """Those who run nothing."""
        self._busy = Rings[_Owner]()
        self._forget_from = _FORGET_FROM
        """With so many owners there is the next look at who may be forgotten."""
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
        found = self._idle.first(most)
        turn = None if only_idle else self._busy.turn
        # Where enough are idle in an earlier turn, or this one, the others are not needed.
        if turn is not None and (len(found) < most or found[-1][0] > turn):
            found = list(merge(found, self._busy.first(most), key=lambda each: each[0]))
        return [owner.jobs[0] for _, owner in islice(found, most)]

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
        for rings in (self._idle, self._busy):
            if owner in rings:
                rings.make_first(owner)

    def note_running(self, name: str) -> None:
        """Whether this owner runs some job may have changed."""
        if (owner := self._owners.get(name)) is None:
            return
        there, other = self._idle, self._busy
        if self._runs_some(name):
            there, other = other, there
        if (turn := other.remove(owner)) is not None:
            there.add(owner, turn)

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
        return self._next_turn is not None

    @property
    def _now(self) -> float:
        return self._turn * self._turn_cost

    def _price(self, job: Waiting) -> float:
        assert job.cost is not None
        return job.cost / job.weight

    @property
    def _next_turn(self) -> int | None:
        """The first in which somebody is served."""
        turns = [turn for turn in (self._idle.turn, self._busy.turn) if turn is not None]
        return min(turns, default=None)

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
        elif owner not in self._idle and owner not in self._busy:
            turn = max(int(owner.tag // self._turn_cost), self._turn)
            (self._busy if self._runs_some(owner.name) else self._idle).add(owner, turn)

    def _leave(self, owner: _Owner) -> None:
        self._idle.remove(owner)
        self._busy.remove(owner)

    def _advance(self, begins: float) -> None:
        """To the first turn in which somebody is served; if nobody waits, to that of the start."""
        turn = self._next_turn
        if turn is None:
            turn = int(begins // self._turn_cost)
        if turn <= self._turn:
            return
        self._turn = turn
        if len(self._owners) >= self._forget_from:
            for owner in list(self._owners.values()):
                self._forget(owner)
            # As many have to come again as stay: so a look costs each that came a fixed part.
            self._forget_from = _FORGET_FROM + 2 * len(self._owners)

    def _forget(self, owner: _Owner) -> None:
        """One that waits for nothing and owes nothing is as good as new."""
        if not owner.jobs and not owner.is_held and owner.tag <= self._now:
            self._owners.pop(owner.name, None)
