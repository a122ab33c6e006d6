"""Slot: the place of one job actor on a worker, and the actor that is in it now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from typing import Any

from actors.dispatch.cluster import ActorUnavailable, Cluster, JobActor
from actors.worker.job import RunOutcome
from events.job import Job
from events.queue import QueueEntry
from events.retry import keep_trying


class SlotState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"


class Slot:
    """Keeps a job actor ready, and makes another once it has run as many jobs as it may.

    One task at a time brings the actor up; `replace` ends that task before it begins another.
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
        """`name` is also that of the actor. `on_change` is called after each change of `state`.

        `retry_s`: the longest pause before an actor that did not start is made again.
        """
        self.name = name
        self.state = SlotState.STARTING
        self.job_id: str | None = None
        """The job that it was given, or was found to run."""
        self.entry: QueueEntry | None = None
        """The entry that it was given; None once it is done with it, or was replaced."""
        self.writer: str | None = None
        """The name under which its actor writes events."""
        self._worker = worker
        self._cluster = cluster
        self._jobs_per_actor = jobs_per_actor
        self._on_change = on_change
        self._retry_s = retry_s
        self._actor: JobActor | None = None
        self._jobs_run = 0
        self._must_kill = False
        """The actor of this name is to be killed before another is made."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_expired(self) -> bool:
        """Its actor has run as many jobs as one actor may."""
        return self._jobs_run >= self._jobs_per_actor

    def open(self) -> None:
        """Begin to find or make the actor."""
        self._begin(self._bring_up())

    def replace(self) -> None:
        """Begin to kill the actor and to make another under its name. It runs nothing from now."""
        self.job_id = self.entry = None
        self._must_kill = True
        self._begin(self._bring_up())

    def renew(self) -> None:
        """Begin to make another actor, once this one runs no job that another dispatcher gave it.

        For a while two may take each other's actors for idle: none ends what the other one runs.
        """
        self.job_id = self.entry = None
        self._begin(self._retire_and_bring_up())

    async def close(self) -> None:
        """End the actor, and make no other one."""
        await self.detach()
        await self._persist(lambda: self._cluster.kill(self.name))

    async def detach(self) -> None:
        """Leave the actor to whoever comes next."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.state = SlotState.STARTING

    def reserve(self, entry: QueueEntry) -> None:
        self.job_id, self.entry = entry.job_id, entry
        self._become(SlotState.BUSY)

    def release(self) -> None:
        self.job_id = self.entry = None
        self._become(SlotState.IDLE)

    async def run(self, entry: QueueEntry, job: Job) -> RunOutcome:
        """Run the job of an entry, which was folded a while ago. Raises ActorDied, ActorLost."""
        assert self._actor is not None
        self._jobs_run += 1
        return await self._actor.run(entry, job)

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        """See `JobActor.take_delivery`."""
        return self._actor is not None and await self._actor.take_delivery(
            entry, timeout_s=timeout_s
        )

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._become(SlotState.STARTING)
        self._task = asyncio.create_task(work, name=self.name)

    async def _retire_and_bring_up(self) -> None:
        if (actor := self._actor) is not None:
            with suppress(ActorUnavailable):  # whoever does not answer is killed
                while not await actor.retire():
                    await self._wait_idle(actor)
        self._must_kill = True
        await self._bring_up()

    async def _bring_up(self) -> None:
        await self._persist(self._kill_and_adopt)

    async def _persist(self, step: Callable[[], Awaitable[None]]) -> None:
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
        self._must_kill = True  # unless it comes up
        await self._adopt()
        self._must_kill = False

    async def _adopt(self) -> None:
        """Find or make the actor. One that still runs a predecessor's job is waited for."""
        self._actor = actor = await self._cluster.job_actor(self._worker, self.name)
        self.writer = await actor.ready()
        await self._wait_idle(actor)
        self._become(SlotState.IDLE)

    async def _wait_idle(self, actor: JobActor) -> None:
        """Until it runs no job; the slot says which one it is. Raises ActorUnavailable."""
        self.job_id, self._jobs_run = await actor.state()
        while self.job_id is not None:
            self._become(SlotState.BUSY)
            await actor.wait_idle()
            self.job_id, self._jobs_run = await actor.state()

    def _become(self, state: SlotState) -> None:
        self.state = state
        self._on_change()
