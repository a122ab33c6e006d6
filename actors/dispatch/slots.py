"""Slots: those of one worker. A few more than run jobs are kept ready, within a bound."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from actors.dispatch.slot import Slot, SlotState
from actors.waiting.lowest import Lowest

_START_S = 10.0
"""How long the start of one holds up those of others: one that does not start is to stop none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNumbers:
    """How many slots a worker has."""

    most: int = 0
    """0: as many as its engine says, and those that are kept free besides."""
    expected: int = 4
    """How many it is taken to say, until it has."""
    kept_free: int = 0
    spare: int = 2
    """How many are ready beyond those that run jobs: so many, and half as many as run jobs."""
    starting: int = 0
    """How many further ones start at the same time. 0: as many as its place allows."""
    idle_s: float = 300.0
    """How long one more than that stays after it was needed."""

    def most_of(self, engine_takes: int) -> int:
        """How many there may be beside an engine that takes so many jobs."""
        return self.most or engine_takes + self.kept_free


class Slots:
    """Opens the next ones as jobs come, and closes again those that nobody needed for some time.

    The start of a job actor takes part of a second, so it is begun before a job waits for it. Few
    start at a time: they would take the processor from the jobs that run, which would stay longer,
    so that still more were wanted. What keeps the device from too many jobs is the engine, which
    lets them in by their needs.
    """

    def __init__(
        self,
        numbers: SlotNumbers,
        *,
        make: Callable[[int, Callable[[], None]], Slot],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make`: the slot of a number, which calls what it is given after each change."""
        self._numbers = numbers
        self._make = make
        self._on_change = on_change
        self._clock = clock
        self._engine_takes = numbers.expected
        self._open: dict[int, Slot] = {}
        self._states: dict[int, SlotState] = {}
        """Of those that are open, as they last said."""
        self._counts: Counter[SlotState] = Counter()
        self._idle = Lowest()
        self._most_starting = 1
        self._starting: dict[int, float] = {}
        """Since when those that never were ready are open."""
        self._unheard: set[int] | None = None
        """Those of a predecessor that have not said what they run; None before they were found."""
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._is_kept = False
        self._needed = 0
        """The most that were needed since the last look at what is idle."""
        self._look_at = 0.0
        """When to look the next time."""

    def __iter__(self) -> Iterator[Slot]:
        """Those that are open."""
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def most(self) -> int:
        """How many there may be."""
        return self._numbers.most_of(self._engine_takes)

    @property
    def are_heard(self) -> bool:
        """Whether those of a predecessor have all said what they run."""
        return self._unheard is not None and not self._unheard

    @property
    def is_busy(self) -> bool:
        return self.busy > 0

    @property
    def busy(self) -> int:
        """How many run jobs."""
        return self._counts[SlotState.BUSY]

    def idle(self) -> Slot | None:
        """The one for the next job."""
        if self.busy >= self.most or (number := self._idle.first) is None:
            return None
        return self._open[number]

    def free(self) -> int:
        """How many further jobs may start: in slots that are idle, or as soon as they are open."""
        to_open = max(self.most - len(self), 0)
        room = self.most - self.busy
        return max(min(self._counts[SlotState.IDLE] + to_open, room), 0)

    def open(self, found: Iterable[int], *, starting: int = 1) -> None:
        """Begin with those of a predecessor, which may run jobs, and as many as are to be ready.

        `starting`: how many further ones start at the same time, unless the numbers say it.
        """
        self._most_starting = self._numbers.starting or starting
        self._look_at = self._clock() + self._numbers.idle_s
        self._unheard = set(found)
        for number in sorted(self._unheard):
            self._add(number)
        self._is_kept = True  # only now: while some are missing here, others would be opened
        self._open_needed()

    def fit(self, engine_takes: int) -> None:
        """The engine said how many jobs it takes: open or close what follows from that."""
        if engine_takes != self._engine_takes:
            self._engine_takes = engine_takes
            self._tell()
        elif self._is_kept:
            self._open_needed()
        if self._clock() >= self._look_at:
            self._close_surplus()

    async def detach(self) -> None:
        """Leave the actors to whoever comes next."""
        self._is_kept = False
        for closing in self._closing.values():
            closing.cancel()
        await asyncio.gather(*self._closing.values(), return_exceptions=True)
        for slot in self:
            await slot.detach()

    def _wanted(self) -> int:
        """How many are to be open now."""
        return min(self.busy + self._numbers.spare + self.busy // 2, self.most)

    def _open_needed(self) -> None:
        wanted = self._wanted()
        self._needed = max(self._needed, wanted)
        number = 0
        while len(self._open) < wanted and self._may_start():
            if number not in self._open and number not in self._closing:
                self._add(number)
            number += 1

    def _may_start(self) -> bool:
        late = self._clock() - _START_S
        recent = sum(since > late for since in self._starting.values())
        return recent < self._most_starting

    def _add(self, number: int) -> None:
        self._starting[number] = self._clock()
        self._open[number] = slot = self._make(number, partial(self._note_state, number))
        slot.open()

    def _note_state(self, number: int) -> None:
        """One that is being closed counts no more."""
        before, slot = self._states.pop(number, None), self._open.get(number)
        if before is not None:
            self._counts[before] -= 1
        if slot is not None:
            self._states[number] = slot.state
            self._counts[slot.state] += 1
        if slot is None or slot.state is not SlotState.STARTING:
            self._starting.pop(number, None)
            if self._unheard:
                self._unheard.discard(number)
        if slot is not None and slot.state is SlotState.IDLE:
            self._idle.add(number)
        else:
            self._idle.discard(number)
        self._tell()

    def _tell(self) -> None:
        if self._is_kept:
            self._open_needed()
        self._on_change()

    def _close_surplus(self) -> None:
        """Those that nobody needed since the last look, by their number: what starts goes first."""
        surplus = len(self._open) - self._needed
        self._needed, self._look_at = self._wanted(), self._clock() + self._numbers.idle_s
        unused = [
            (slot.state is SlotState.STARTING, number)
            for number, slot in self._open.items()
            if slot.state is not SlotState.BUSY
        ]
        for _, number in sorted(unused, reverse=True)[: max(surplus, 0)]:
            slot = self._open.pop(number)
            self._closing[number] = asyncio.create_task(self._close(number, slot))
            self._note_state(number)

    async def _close(self, number: int, slot: Slot) -> None:
        try:
            await slot.close()
        finally:
            del self._closing[number]
