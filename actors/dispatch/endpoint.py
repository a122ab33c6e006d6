"""EndpointDispatcher: one endpoint's queue, lane by lane, onto its workers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from actors.dispatch.cluster import ActorDied
from actors.dispatch.deaths import AfterDeath, Deaths
from actors.dispatch.free_slots import Place
from actors.dispatch.pool import WorkerPool
from actors.dispatch.slot import Slot
from actors.dispatch.worker import Worker
from actors.endpoints.status import EndpointStatus
from actors.job_error import end_job
from actors.waiting.choice import Chosen, choice_for
from actors.waiting.classes import waiting_of
from actors.waiting.deadlines import Deadlines
from actors.waiting.running_jobs import RunningJobs
from actors.waiting.turns import Waiting
from actors.worker.job import RunOutcome
from events.decisions import Expire
from events.errors import LogUnavailable, ReadTimeout
from events.ids import LANES
from events.job import Job
from events.log import JobWriter, utc_now
from events.queue import JobQueue, QueueEntry
from events.retry import keep_trying
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings

logger = logging.getLogger(__name__)

_PULL_TIMEOUT_S = 30.0
_RENEWALS_IN_HAND = 12
"""How often an entry in hand is renewed before others of its lane get a chance to come."""
_PASSING = (LogUnavailable, ReadTimeout)
"""Errors that say nothing about a job: its entry comes again."""


@dataclass(slots=True)
class _Held:
    """An entry in hand: nobody's job yet, and renewed until a slot takes it."""

    job: Job
    entry: QueueEntry
    waiting: Waiting
    taken: asyncio.Event

    @property
    def owner(self) -> str:
        return self.waiting.owner


class EndpointDispatcher:
    """Holds at most one entry per lane, and gives each owner among them a turn.

    So one caller's backlog holds up no caller in another lane.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        running_jobs: RunningJobs,
        status: EndpointStatus,
        hold_renew_s: float,
        settings: DispatchSettings,
    ) -> None:
        """`writer`: on a log that waits out outages. `running_jobs`: of all endpoints."""
        self.endpoint = endpoint
        self.status = status
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._running_jobs = running_jobs
        self._hold_renew_s = hold_renew_s
        self._deaths = Deaths(writer, max_dispatch_failures=settings.max_dispatch_failures)
        self._choice = choice_for(endpoint, pool.free, running_jobs, settings)
        self._waiting = self._choice.waiting
        self._deadlines = Deadlines(
            endpoint.id,
            queue=queue,
            writer=writer,
            is_running=lambda job_id: pool.free.running(job_id) is not None,
            why=pool.trouble,
            period_s=settings.deadlines_period_s,
        )
        self._held: dict[str, _Held] = {}
        """By job."""
        self._last_depth = 0

    async def run(self) -> None:
        """Dispatch until cancelled; what runs by then runs on."""
        with self._running_jobs.telling(self._note_end):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pool.keep(self._demand))
                group.create_task(self._deadlines.run())
                for lane in range(LANES):
                    group.create_task(self._pull(lane))
                while True:
                    chosen = await self._choose()
                    held = self._take_chosen(chosen)
                    run = group.create_task(self._run_held(held, (chosen.worker, chosen.slot)))
                    run.add_done_callback(partial(self._note_done, held.owner))

    async def _demand(self) -> int:
        """While the queue cannot be counted, as many as there were."""
        with suppress(LogUnavailable):
            self._last_depth = await self._queue.depth(self.endpoint.id)
        return self._last_depth

    async def _choose(self) -> Chosen:
        """The next job and its slot, once one may start."""
        while (chosen := self._choice.next(now := time.monotonic())) is None:
            wake_at = self._choice.wake_at
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else wake_at - now):
                    await self._pool.changed()
        return chosen

    def _take_chosen(self, chosen: Chosen) -> _Held:
        held = self._held.pop(chosen.job.job_id)
        chosen.slot.reserve(held.entry)
        held.taken.set()
        self._running_jobs.add(held.owner, self.endpoint)
        self._waiting.take(chosen.job)
        self._waiting.note_running(held.owner)
        return held

    async def _pull(self, lane: int) -> None:
        await keep_trying(lambda: self._pull_from(lane), on=_PASSING)

    async def _pull_from(self, lane: int) -> None:
        async with self._queue.lane(self.endpoint.id, lane) as entries:
            while True:
                for entry in await entries.next(most=1, timeout_s=_PULL_TIMEOUT_S):
                    await self._take(entry)

    async def _take(self, entry: QueueEntry) -> None:
        try:
            await self._receive(entry)
        except _PASSING:
            raise
        except Exception as error:  # noqa: BLE001 - `_drop` logs it
            await self._drop(entry, error)

    async def _drop(self, entry: QueueEntry, error: Exception) -> None:
        """An error about one job ends that job, not the others' turn. Its entry does not return.

        That of a job which a later version can read is left, and comes again after its lease.
        """
        if await end_job(entry.job_id, error, writer=self._writer, action="dispatch"):
            await entry.ack()

    async def _receive(self, entry: QueueEntry) -> None:
        job = await self._writer.load(entry.job_id)
        if job is None or job.end is not None:
            await entry.ack()
        elif job.id not in self._held and not await self._is_running(job, entry):
            await self._hold(_Held(job, entry, waiting_of(job), asyncio.Event()))

    async def _is_running(self, job: Job, entry: QueueEntry) -> bool:
        """Its lease ran out: the event log was not available, or its actor hangs."""
        found = self._pool.free.running(job.id)
        if found is None:
            return False
        worker, slot = found
        if await slot.take_delivery(entry, timeout_s=self._hold_renew_s):
            return True
        logger.warning("replacing", extra={"action": "actor_replaced", "job_id": job.id})
        worker.mark_unready()  # its attempt may have failed just now, by the engine
        await worker.cancel_run(job.id, job.attempts)
        if slot.job_id == job.id:
            slot.replace()
        return False

    async def _hold(self, held: _Held) -> None:
        """Keep an entry in hand until a slot takes it, or its job ends without one.

        After some time it goes back, to be taken again behind those that were delivered before and
        not renewed: the job that has the slot may hang, and be in this lane, too.
        """
        self._held[held.job.id] = held
        self._waiting.put(held.waiting)
        self._pool.wake()
        try:
            for _ in range(_RENEWALS_IN_HAND):
                await held.entry.renew()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._hold_renew_s):
                        await held.taken.wait()
                if held.taken.is_set():
                    return
                if await self._has_ended(held):
                    await held.entry.ack()
                    return
            if not held.taken.is_set():
                self._let_go(held)  # no slot takes it from here on
                await held.entry.nak()
        except asyncio.CancelledError:
            if not held.taken.is_set():
                await held.entry.nak()
            raise
        finally:
            self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        if self._held.get(held.job.id) is held:
            del self._held[held.job.id]
            self._waiting.remove(held.waiting)

    async def _has_ended(self, held: _Held) -> bool:
        """Cancelled meanwhile, or out of time without ever getting a slot."""
        job = await self._writer.load(held.job.id) or held.job
        expire = Expire(utc_now(), self._pool.trouble())
        held.job = (await self._writer.execute(expire, job)).job or job
        return held.job.end is not None and not held.taken.is_set()

    async def _run_held(self, held: _Held, place: Place) -> None:
        worker, slot = place
        try:
            await self._dispatch(held, worker, slot)
        except Exception as error:  # noqa: BLE001 - `_drop` logs it
            if not isinstance(error, _PASSING):
                await self._drop(held.entry, error)
            if slot.entry is held.entry:
                slot.renew()

    def _note_done(self, owner: str, _: asyncio.Task[None]) -> None:
        """Called for a run that was cancelled before it began, too."""
        self._running_jobs.remove(owner, self.endpoint)

    def _note_end(self, owner: str) -> None:
        """One of this owner's jobs ended, here or on another endpoint."""
        self._waiting.release(owner)
        self._waiting.note_running(owner)
        self._pool.wake()

    async def _dispatch(self, held: _Held, worker: Worker, slot: Slot) -> None:
        death: ActorDied | None = None
        outcome: RunOutcome | None = None
        try:
            outcome = await slot.run(held.entry, held.job)
        except ActorDied as error:
            fields = {"action": "actor_died", "job_id": held.job.id, "error": str(error)}
            logger.warning("job actor died", extra=fields)
            death = error
        if slot.entry is not held.entry:
            return  # Its actor hung and was replaced; the job came again, perhaps to this slot.
        if outcome is RunOutcome.BUSY:
            self._waiting.refund(held.waiting)
        elif outcome is RunOutcome.RETRY:
            worker.mark_unready()
        elif outcome in {RunOutcome.COMPLETED, RunOutcome.ENDED}:
            self.status.note_end()
        if death is not None:
            await self._give_back(held, worker, slot, death)
            if slot.entry is not held.entry:
                return  # Replaced while its job was read.
        # A new actor takes seconds to start; it was the engine that failed, not this one.
        if death is not None:
            slot.replace()
        elif outcome not in {RunOutcome.COMPLETED, RunOutcome.RETRY} or slot.is_expired:
            slot.renew()
        else:
            slot.release()

    async def _give_back(self, held: _Held, worker: Worker, slot: Slot, death: ActorDied) -> None:
        """At once, if the dead actor was the job's writer; else its lease has to run out."""
        actor = slot.writer
        job = await self._writer.load(held.job.id)
        if slot.entry is not held.entry or job is None:
            return
        after = await self._deaths.note(
            job, death, worker=worker, actor=actor, attempts=held.job.attempts
        )
        match after:
            case AfterDeath.ENDED:
                await held.entry.ack()
            case AfterDeath.BROKEN_OFF:
                await held.entry.nak()
            case AfterDeath.NOT_BEGUN:
                self._waiting.refund(held.waiting)
