"""Dispatcher: gives what waits on the queue to workers that have room.

One actor, one `EndpointDispatcher` per endpoint, at work only while it holds a lease in the
database. Two may overlap for a while: a job that both dispatch is started twice, by two actors,
and the fence lets one of them write.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from actors.plan import checkpoint_of
from actors.workers import ActorDied, Slot, WorkerPool
from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from events.ids import LANES
from events.jetstream import Bus
from events.job import Job
from events.log import JobWriter
from events.puller import Message
from events.queues import JobQueue, job_id_of
from events.records import Endpoint
from events.registry import Endpoints, Leases

logger = logging.getLogger(__name__)

_LEASE_NAME = "dispatcher"
_PULL_TIMEOUT_S = 30.0


class EndpointDispatcher:
    """One endpoint: at most one entry per lane in hand, lanes served round-robin."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        bus: Bus,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        hold_renew_s: float,
    ) -> None:
        self.endpoint = endpoint
        self._bus = bus
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._hold_renew_s = hold_renew_s
        self._held: dict[int, _Held] = {}
        self._arrived = asyncio.Event()
        self._last_lane = -1

    async def run(self) -> None:
        """Dispatch until cancelled; what runs by then runs on."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pool.keep(lambda: bool(self._held)))
            for lane in range(LANES):
                group.create_task(self._pull(lane))
            while True:
                lane, slot = await self._match()
                held = self._held.pop(lane)
                self._last_lane = lane
                slot.reserve(held.job.id)
                held.taken.set()
                group.create_task(self._dispatch(held, slot))

    async def _match(self) -> tuple[int, Slot]:
        """The next lane in turn that has an entry, once a slot is free."""
        while True:
            if self._held:
                lane = min(self._held, key=lambda each: (each - self._last_lane - 1) % LANES)
                if slot := self._pool.idle_slot(checkpoint_of(self._held[lane].job)):
                    return lane, slot
                await self._pool.changed()
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def _pull(self, lane: int) -> None:
        while True:
            try:
                async with self._queue.lane(self.endpoint.id, lane) as puller:
                    while True:
                        for entry in await puller.next(batch=1, timeout_s=_PULL_TIMEOUT_S):
                            await self._hold(lane, entry)
            except (LogUnavailable, ReadTimeout):
                await asyncio.sleep(random.uniform(0.2, 0.5))

    async def _hold(self, lane: int, entry: Message) -> None:
        """Keep an entry in hand until a slot takes it. Ended or unknown jobs leave at once."""
        job = await self._writer.load(job_id_of(entry))
        if job is None or job.end is not None:
            await self._bus.ack(entry.ack_subject)
            return
        if (slot := self._pool.running(job.id)) is not None:
            # Its lease ran out: the event log was away, or the actor hangs.
            timeout_s = self._hold_renew_s
            if await slot.take_delivery(job.id, entry.ack_subject, timeout_s=timeout_s):
                return
            logger.warning("replacing", extra={"action": "zombie", "job_id": job.id})
            await slot.replace()
        held = _Held(job, entry.ack_subject, asyncio.Event())
        self._held[lane] = held
        self._arrived.set()
        while not held.taken.is_set():
            await self._bus.renew(entry.ack_subject)
            with suppress(TimeoutError):
                await asyncio.wait_for(held.taken.wait(), self._hold_renew_s)

    async def _dispatch(self, held: _Held, slot: Slot) -> None:
        actor = slot.actor
        try:
            await slot.run(held.job.id, held.ack_subject)
            died = False
        except ActorDied as error:
            died = True
            fields = {"action": "actor_died", "job_id": held.job.id, "error": str(error)}
            logger.warning("job actor died", extra=fields)
        if slot.job_id != held.job.id:
            return  # Replaced as a zombie: its entry was delivered anew, and is not ours to touch.
        if died:
            await self._give_back(held, actor)
        if died or slot.is_worn:
            await slot.replace()
        else:
            slot.release()

    async def _give_back(self, held: _Held, actor: str | None) -> None:
        """At once, if the dead actor was the job's writer; else its lease has to run out."""
        try:
            job = await self._writer.load(held.job.id)
        except (LogUnavailable, ReadTimeout):
            return
        if job is not None and job.end is None and job.actor == actor:
            await self._bus.nak(held.ack_subject)


@dataclass(frozen=True, slots=True)
class _Held:
    job: Job
    ack_subject: str
    taken: asyncio.Event


class Dispatcher:
    """The role: one EndpointDispatcher per row of `endpoints`, while the lease is ours."""

    def __init__(
        self,
        *,
        holder: str,
        bus: Bus,
        leases: Leases,
        endpoints: Endpoints,
        default_endpoint: Endpoint,
        open_endpoint: Callable[[Endpoint], EndpointDispatcher],
        lease_s: float,
        period_s: float,
    ) -> None:
        self._holder = holder
        self._bus = bus
        self._leases = leases
        self._endpoints = endpoints
        self._default_endpoint = default_endpoint
        self._open_endpoint = open_endpoint
        self._lease_s = lease_s
        self._period_s = period_s
        self._running: dict[str, tuple[Endpoint, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Until cancelled, or until an endpoint's loop ends by an error."""
        await self._bus.wait_connected()
        while True:
            if await self._has_lease():
                await self._follow_rows()
            else:
                await self._stop_all()
            for _, task in self._running.values():
                if task.done():
                    task.result()
            await asyncio.sleep(min(self._period_s, self._lease_s / 3))

    async def _has_lease(self) -> bool:
        try:
            return await self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=self._lease_s)
        except DatabaseUnavailable:
            return False

    async def _follow_rows(self) -> None:
        try:
            await self._endpoints.add_missing(self._default_endpoint)
            rows = {endpoint.id: endpoint for endpoint in await self._endpoints.all()}
        except DatabaseUnavailable:
            return
        for endpoint_id, (endpoint, task) in list(self._running.items()):
            if rows.get(endpoint_id) != endpoint:
                await _stop(task)
                del self._running[endpoint_id]
        for endpoint_id, endpoint in rows.items():
            if endpoint_id not in self._running:
                dispatcher = self._open_endpoint(endpoint)
                self._running[endpoint_id] = (endpoint, asyncio.create_task(dispatcher.run()))

    async def _stop_all(self) -> None:
        for _, task in self._running.values():
            await _stop(task)
        self._running.clear()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
