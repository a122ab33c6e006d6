"""Slots: the job actors of one worker. A few spare job actors are ready before jobs need them."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from actors.scheduler.cluster import ActorUnavailable, Cluster, JobActor
from events.bus.queues import QueueEntry
from events.retry import keep_trying
from settings.constant import constant

_SPARE_JOB_ACTORS = constant("SPARE_JOB_ACTORS", 2)
_JOB_ACTORS_STARTING = constant("JOB_ACTORS_STARTING", 0)
_JOB_ACTOR_IDLE_S = constant("JOB_ACTOR_IDLE_S", 300.0)
_START_S = 10.0
"""Seconds for which a new slot counts as starting, even if it never becomes ready. The number of
starting slots is limited.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNumbers:
    """How many slots a worker may have."""

    most: int = 0
    """Largest number of slots. 0 means the number of jobs that fit on the engine plus `kept_free`.
    """
    expected: int = 4
    """Assumed number of jobs that fit on the engine, until the engine has answered."""
    kept_free: int = 0
    spare: int = _SPARE_JOB_ACTORS
    """Number of spare slots, in addition to half the number of busy slots."""
    starting: int = _JOB_ACTORS_STARTING
    """Largest number of starting slots. 0 means the default of the device."""
    idle_s: float = _JOB_ACTOR_IDLE_S
    """Seconds after which a surplus slot is closed."""

    def most_of(self, engine_takes: int) -> int:
        """Return the largest number of slots if `engine_takes` jobs fit on the engine."""
        return self.most or engine_takes + self.kept_free


class Slots:
    """Opens slots before jobs need them, and closes slots that were not needed for some time.

    So no job has to wait for the start of a job actor. Only a few slots start at the same time,
    because starting actors slow down running jobs. More slots would then be busy, and still more
    slots would be opened. The number of slots does not protect the device from too many jobs: the
    engine admits jobs according to their needs.
    """

    def __init__(
        self,
        numbers: SlotNumbers,
        *,
        make: Callable[[int, Callable[[], None]], Slot],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` gets the number of a slot, and a function that the slot calls after a change."""
        self._numbers = numbers
        self._make = make
        self._on_change = on_change
        self._clock = clock
        self._engine_takes = numbers.expected
        self._open: dict[int, Slot] = {}
        self._states: dict[int, SlotState] = {}
        """The noted states of the open slots, by number."""
        self._counts: Counter[SlotState] = Counter()
        self._idle = MinSet()
        self._most_starting = 1
        self._starting: dict[int, float] = {}
        """The time of the opening of each slot that has not become ready yet."""
        self._unreported: set[int] | None = None
        """Adopted slots that have not reported their jobs yet, or None before `open`."""
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._is_kept = False
        self._needed = 0
        """Largest number of wanted slots since the last `_close_surplus`."""
        self._surplus_check_at = 0.0

    def __iter__(self) -> Iterator[Slot]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    @property
    def most(self) -> int:
        """Largest number of slots."""
        return self._numbers.most_of(self._engine_takes)

    @property
    def have_reported(self) -> bool:
        """Whether all adopted slots have reported their jobs. False before `open`."""
        return self._unreported is not None and not self._unreported

    @property
    def is_busy(self) -> bool:
        return self.busy > 0

    @property
    def busy(self) -> int:
        """Number of slots that run jobs."""
        return self._counts[SlotState.BUSY]

    def idle(self) -> Slot | None:
        """Return the slot for the next job, or None."""
        if self.busy >= self.most or (number := self._idle.first) is None:
            return None
        return self._open[number]

    def free(self) -> int:
        """Return the number of further jobs that may start, in idle slots or in slots that can be
        opened.
        """
        to_open = max(self.most - len(self), 0)
        unused = self.most - self.busy
        return max(min(self._counts[SlotState.IDLE] + to_open, unused), 0)

    def open(self, found: Iterable[int], *, starting: int = 1) -> None:
        """Adopt the slots `found` of a previous dispatcher, and open further slots as needed.

        At most `starting` slots start at the same time, unless `SlotNumbers.starting` is set.
        """
        self._most_starting = self._numbers.starting or starting
        self._surplus_check_at = self._clock() + self._numbers.idle_s
        self._unreported = set(found)
        for number in sorted(self._unreported):
            self._add(number)
        self._is_kept = True  # From now on, changes may open slots.
        self._open_needed()

    def fit(self, engine_takes: int) -> None:
        """Open or close slots, so that `engine_takes` jobs can run."""
        if engine_takes != self._engine_takes:
            self._engine_takes = engine_takes
            self._note_change()
        elif self._is_kept:
            self._open_needed()
        if self._clock() >= self._surplus_check_at:
            self._close_surplus()

    async def detach(self) -> None:
        """Stop managing the slots. Their actors continue for another dispatcher."""
        self._is_kept = False
        for closing in self._closing.values():
            closing.cancel()
        await asyncio.gather(*self._closing.values(), return_exceptions=True)
        for slot in self:
            await slot.detach()

    def _wanted(self) -> int:
        """Return the number of slots that should be open now."""
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
        """Count a slot in its new state. Slots that are being closed do not count."""
        before, slot = self._states.pop(number, None), self._open.get(number)
        if before is not None:
            self._counts[before] -= 1
        if slot is not None:
            self._states[number] = slot.state
            self._counts[slot.state] += 1
        if slot is None or slot.state is not SlotState.STARTING:
            self._starting.pop(number, None)
            if self._unreported:
                self._unreported.discard(number)
        if slot is not None and slot.state is SlotState.IDLE:
            self._idle.add(number)
        else:
            self._idle.discard(number)
        self._note_change()

    def _note_change(self) -> None:
        if self._is_kept:
            self._open_needed()
        self._on_change()

    def _close_surplus(self) -> None:
        """Close as many slots as were never needed since the last call: first starting slots, then
        slots with high numbers.
        """
        surplus = len(self._open) - self._needed
        self._needed, self._surplus_check_at = self._wanted(), self._clock() + self._numbers.idle_s
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


class SlotState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"


class Slot:
    """One slot of a worker. It keeps a job actor ready, and replaces it after a number of jobs.

    One task at a time finds or makes the actor. A new task replaces the current task.
    """

    def __init__(
        self,
        name: str,
        *,
        worker: str,
        cluster: Cluster,
        jobs_per_actor: int,
        on_change: Callable[[], None],
        retry_s: float = 1.0,
    ) -> None:
        """`name` is also the name of the actor. If an actor does not start, another actor is made
        after a pause of `retry_s` seconds. `on_change` is called after each change of `state`.
        """
        self.name = name
        self.state = SlotState.STARTING
        self.job_id: str | None = None
        """The job for which the slot is reserved, or that its adopted actor reported."""
        self.entry: QueueEntry | None = None
        """The entry for which the slot is reserved."""
        self.actor: JobActor | None = None
        """The actor, or None until the first actor is found or made."""
        self.actor_name: str | None = None
        """Name under which the actor writes events."""
        self.jobs_run = 0
        """Number of jobs that the actor was given."""
        self._worker = worker
        self._cluster = cluster
        self._jobs_per_actor = jobs_per_actor
        self._on_change = on_change
        self._retry_s = retry_s
        self._must_kill = False
        """Whether the present actor must be killed before another actor is made."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_expired(self) -> bool:
        """Whether the actor has run as many jobs as one actor may."""
        return self.jobs_run >= self._jobs_per_actor

    def open(self) -> None:
        """Begin to find or make the actor."""
        self._begin(self._bring_up())

    def replace(self) -> None:
        """Begin to kill the actor and to make another one."""
        self.job_id = self.entry = None
        self._must_kill = True
        self._begin(self._bring_up())

    def recycle(self) -> None:
        """Begin to replace the actor when it runs no job. While two dispatchers overlap, the actor
        may run a job of the other dispatcher.
        """
        self.job_id = self.entry = None
        self._begin(self._retire_and_bring_up())

    async def close(self) -> None:
        """Kill the actor, and make no other actor."""
        await self.detach()
        await self._retry(lambda: self._cluster.kill(self.name))

    async def detach(self) -> None:
        """Stop managing the slot. Its actor continues for another dispatcher."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.state = SlotState.STARTING

    def belongs_to(self, entry: QueueEntry | None) -> bool:
        """Return whether the slot is still reserved for this delivery of an entry.

        After a new delivery the slot may have been replaced, and the run of the old delivery must
        not change the slot any more.
        """
        return self.entry is entry

    def reserve(self, entry: QueueEntry) -> None:
        self.job_id, self.entry = entry.job_id, entry
        self._set_state(SlotState.BUSY)

    def release(self) -> None:
        self.job_id = self.entry = None
        self._set_state(SlotState.IDLE)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._set_state(SlotState.STARTING)
        self._task = asyncio.create_task(work, name=self.name)

    async def _retire_and_bring_up(self) -> None:
        if (actor := self.actor) is not None:
            with suppress(ActorUnavailable):  # `_bring_up` kills the actor in any case.
                while not await actor.retire():
                    await self._wait_idle(actor)
        self._must_kill = True
        await self._bring_up()

    async def _bring_up(self) -> None:
        await self._retry(self._kill_and_adopt)

    async def _retry(self, step: Callable[[], Awaitable[None]]) -> None:
        await keep_trying(
            step,
            on=ActorUnavailable,
            first_pause_s=self._retry_s,
            longest_pause_s=self._retry_s,
            fields={"action": "slot_open", "slot": self.name},
        )

    async def _kill_and_adopt(self) -> None:
        if self._must_kill:
            await self._cluster.kill(self.name)
        self._must_kill = True  # An actor that does not become ready is killed at the next try.
        await self._adopt()
        self._must_kill = False

    async def _adopt(self) -> None:
        """Find or make the actor, and wait until it is ready and runs no job."""
        self.actor = actor = await self._cluster.job_actor(self._worker, self.name)
        self.actor_name = await actor.ready()
        await self._wait_idle(actor)
        self._set_state(SlotState.IDLE)

    async def _wait_idle(self, actor: JobActor) -> None:
        """Wait until the actor runs no job, with the slot busy. Raises ActorUnavailable."""
        self.job_id, self.jobs_run = await actor.state()
        while self.job_id is not None:
            self._set_state(SlotState.BUSY)
            await actor.wait_idle()
            self.job_id, self.jobs_run = await actor.state()

    def _set_state(self, state: SlotState) -> None:
        self.state = state
        self._on_change()


class MinSet:
    """A set of numbers with fast access to the smallest number.

    The heap may contain removed numbers until they are its smallest.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._heap: list[int] = []
        self._heaped: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        self._numbers.add(number)
        if number not in self._heaped:
            self._heaped.add(number)
            heapq.heappush(self._heap, number)

    def discard(self, number: int) -> None:
        self._numbers.discard(number)

    @property
    def first(self) -> int | None:
        while self._heap and self._heap[0] not in self._numbers:
            self._heaped.discard(heapq.heappop(self._heap))
        return self._heap[0] if self._heap else None
