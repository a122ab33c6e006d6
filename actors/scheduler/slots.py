"""Slots: the job actors of one worker. A few spare job actors are kept ready."""

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
"""Seconds for which a new slot counts as starting. The number of such slots is limited. After this
time another slot may start, even if this slot never becomes ready.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNumbers:
    """The numbers of slots of a worker."""

    most: int = 0
    """Largest number of slots. 0 means the number of jobs that the engine takes, plus `kept_free`.
    """
    expected: int = 4
    """Assumed number of jobs that the engine takes, until the engine has answered."""
    kept_free: int = 0
    spare: int = _SPARE_JOB_ACTORS
    """Number of spare slots. Half the number of busy slots is added to this number."""
    starting: int = _JOB_ACTORS_STARTING
    """Number of slots that may start at the same time. 0 means the default, which depends on the
    device.
    """
    idle_s: float = _JOB_ACTOR_IDLE_S
    """Seconds after which a surplus slot is closed."""

    def most_of(self, engine_takes: int) -> int:
        """Largest number of slots with an engine that takes `engine_takes` jobs."""
        return self.most or engine_takes + self.kept_free


class Slots:
    """Opens slots before jobs need them, and closes slots that were not needed for some time.

    The start of a job actor takes a part of a second, which a job would have to wait. Only a few
    slots start at the same time: starting actors slow down running jobs, so more slots would stay
    busy and still more slots would be opened. Slots do not protect the device from too many jobs.
    The engine does this: it admits jobs according to their needs.
    """

    def __init__(
        self,
        numbers: SlotNumbers,
        *,
        make: Callable[[int, Callable[[], None]], Slot],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` takes the number of a slot, and a function to be called after each change."""
        self._numbers = numbers
        self._make = make
        self._on_change = on_change
        self._clock = clock
        self._engine_takes = numbers.expected
        self._open: dict[int, Slot] = {}
        self._states: dict[int, SlotState] = {}
        """Last known states of the open slots."""
        self._counts: Counter[SlotState] = Counter()
        self._idle = MinSet()
        self._most_starting = 1
        self._starting: dict[int, float] = {}
        """Slots that have not become ready since they were opened, with the time of their opening.
        """
        self._unreported: set[int] | None = None
        """Slots of the previous dispatcher that have not reported their jobs, or None before
        `open`.
        """
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._is_kept = False
        self._needed = 0
        """Largest result of `_wanted` since the last `_close_surplus`."""
        self._look_at = 0.0
        """Time of the next `_close_surplus`."""

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
        """Whether all slots of the previous dispatcher have reported their jobs. False before
        `open`.
        """
        return self._unreported is not None and not self._unreported

    @property
    def is_busy(self) -> bool:
        return self.busy > 0

    @property
    def busy(self) -> int:
        """Number of slots that run jobs."""
        return self._counts[SlotState.BUSY]

    def idle(self) -> Slot | None:
        """The slot for the next job."""
        if self.busy >= self.most or (number := self._idle.first) is None:
            return None
        return self._open[number]

    def free(self) -> int:
        """Number of further jobs that may start, in idle slots or in slots that can be opened."""
        to_open = max(self.most - len(self), 0)
        room = self.most - self.busy
        return max(min(self._counts[SlotState.IDLE] + to_open, room), 0)

    def open(self, found: Iterable[int], *, starting: int = 1) -> None:
        """Adopt the slots that were found, and open further slots as needed.

        The slots that were found may run jobs. At most `starting` slots start at the same time,
        unless `SlotNumbers.starting` is set.
        """
        self._most_starting = self._numbers.starting or starting
        self._look_at = self._clock() + self._numbers.idle_s
        self._unreported = set(found)
        for number in sorted(self._unreported):
            self._add(number)
        self._is_kept = True  # From here on, `_open_needed` may add slots.
        self._open_needed()

    def fit(self, engine_takes: int) -> None:
        """Open or close slots for the number of jobs that the engine takes."""
        if engine_takes != self._engine_takes:
            self._engine_takes = engine_takes
            self._tell()
        elif self._is_kept:
            self._open_needed()
        if self._clock() >= self._look_at:
            self._close_surplus()

    async def detach(self) -> None:
        """Stop managing the slots. Their actors continue, and another dispatcher finds them."""
        self._is_kept = False
        for closing in self._closing.values():
            closing.cancel()
        await asyncio.gather(*self._closing.values(), return_exceptions=True)
        for slot in self:
            await slot.detach()

    def _wanted(self) -> int:
        """The number of slots that should be open now."""
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
        """Count a slot in its new state. A slot that is being closed is not counted."""
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
        self._tell()

    def _tell(self) -> None:
        if self._is_kept:
            self._open_needed()
        self._on_change()

    def _close_surplus(self) -> None:
        """Close as many slots as were not needed at any time since the last call.

        Starting slots are closed first, then slots with high numbers.
        """
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


class SlotState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"


class Slot:
    """One slot of a worker. It keeps a job actor ready, and replaces it after a number of jobs.

    One task at a time finds or makes the actor. A method that begins another task cancels the
    present task first.
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
        """`name` is also the name of the actor. `on_change` is called after each change of `state`.

        If an actor does not start, another actor is made after a pause of `retry_s` seconds.
        """
        self.name = name
        self.state = SlotState.STARTING
        self.job_id: str | None = None
        """The job that the slot was given, or that its actor reported after a take-over."""
        self.entry: QueueEntry | None = None
        """The entry that the slot was given, or None after the end of its job or after `replace`.
        """
        self.actor: JobActor | None = None
        """The actor, or None until the first one is found or made."""
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
        """Whether the actor of this name has to be killed before another actor is made."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_expired(self) -> bool:
        """Whether the actor has run as many jobs as one actor may."""
        return self.jobs_run >= self._jobs_per_actor

    def open(self) -> None:
        """Begin to find or make the actor."""
        self._begin(self._bring_up())

    def replace(self) -> None:
        """Begin to kill the actor and to make another actor with its name."""
        self.job_id = self.entry = None
        self._must_kill = True
        self._begin(self._bring_up())

    def recycle(self) -> None:
        """Begin to replace the actor. An actor that runs a job is replaced after the job has ended.

        While two dispatchers overlap, the actor may run a job of the other dispatcher. So `retire`
        is called first. The actor refuses `retire` while it runs a job.
        """
        self.job_id = self.entry = None
        self._begin(self._retire_and_bring_up())

    async def close(self) -> None:
        """Kill the actor, and make no other actor."""
        await self.detach()
        await self._retry(lambda: self._cluster.kill(self.name))

    async def detach(self) -> None:
        """Stop managing the slot. Its actor continues, and another dispatcher finds it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.state = SlotState.STARTING

    def belongs_to(self, entry: QueueEntry | None) -> bool:
        """Whether the slot is still reserved for this delivery of an entry.

        If the entry is delivered again, the slot may be replaced. The run of the old delivery must
        then change nothing more.
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
            with suppress(ActorUnavailable):  # If the actor does not answer, it is killed below.
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
        self._must_kill = True  # If the actor does not become ready, it is killed at the next try.
        await self._adopt()
        self._must_kill = False

    async def _adopt(self) -> None:
        """Find or make the actor. If the actor runs a job of another dispatcher, wait for the end
        of the job.
        """
        self.actor = actor = await self._cluster.job_actor(self._worker, self.name)
        self.actor_name = await actor.ready()
        await self._wait_idle(actor)
        self._set_state(SlotState.IDLE)

    async def _wait_idle(self, actor: JobActor) -> None:
        """Wait until the actor runs no job. During the wait the slot is busy. Raises
        ActorUnavailable.
        """
        self.job_id, self.jobs_run = await actor.state()
        while self.job_id is not None:
            self._set_state(SlotState.BUSY)
            await actor.wait_idle()
            self.job_id, self.jobs_run = await actor.state()

    def _set_state(self, state: SlotState) -> None:
        self.state = state
        self._on_change()


class MinSet:
    """A set of numbers with fast access to the smallest one.

    Removed numbers stay in the heap until they are the smallest.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._heap: list[int] = []
        """All numbers of the set, and some numbers that were removed from it."""
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
