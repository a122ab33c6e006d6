"""EndpointDispatcher: one endpoint's queue, lane by lane, onto its workers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from actors.dispatch.cluster import ActorDied, ActorLost
from actors.dispatch.deadlines import Deadlines
from actors.dispatch.pool import WorkerPool
from actors.dispatch.running_jobs import RunningJobs
from actors.dispatch.slot import Slot
from actors.dispatch.worker import Worker
from actors.endpoints.status import EndpointStatus
from actors.job_error import end_job
from actors.worker.job import RunOutcome
from actors.worker.plan import checkpoint_of
from events.decisions import Expire, FailAttempt, FailDispatch
from events.errors import LogUnavailable, ReadTimeout
from events.ids import LANES
from events.job import Job
from events.log import JobWriter, utc_now
from events.queue import JobQueue, QueueEntry
from events.retry import keep_trying
from events.store.records import Endpoint
from events.types import Blame

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
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def owner(self) -> str:
        return self.job.submitted.owner


class EndpointDispatcher:
    """Holds at most one entry per lane and serves the owner who runs the fewest jobs.

    Among equals it serves the lanes in turn. So one caller's backlog does not hold up callers in
    other lanes. A caller whose lane is also that of a backlog waits behind it.
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
        max_dispatch_failures: int,
        deadlines_period_s: float,
    ) -> None:
        """`writer`: on a log that waits out outages. `running_jobs`: of all endpoints."""
        self.endpoint = endpoint
        self.status = status
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._running_jobs = running_jobs
        self._hold_renew_s = hold_renew_s
        self._max_dispatch_failures = max_dispatch_failures
        self._deadlines = Deadlines(
            endpoint.id,
            queue=queue,
            writer=writer,
            is_running=lambda job_id: pool.running(job_id) is not None,
            why=pool.trouble,
            period_s=deadlines_period_s,
        )
        self._held: dict[int, _Held] = {}
        self._last_lane = -1
        self._last_depth = 0

    async def run(self) -> None:
        """Dispatch until cancelled; what runs by then runs on."""
        with self._running_jobs.telling(self._pool.wake):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pool.keep(self._demand))
                group.create_task(self._deadlines.run())
                for lane in range(LANES):
                    group.create_task(self._pull(lane))
                while True:
                    lane, worker, slot = await self._match()
                    held = self._held.pop(lane)
                    self._last_lane = lane
                    slot.reserve(held.entry)
                    held.taken.set()
                    run = group.create_task(self._run_held(held, worker, slot))
                    self._running_jobs.add(held.owner, self.endpoint)
                    run.add_done_callback(partial(self._note_done, held.owner))

    async def _demand(self) -> int:
        """While the queue cannot be counted, as many as there were."""
        with suppress(LogUnavailable):
            self._last_depth = await self._queue.depth(self.endpoint.id)
        return self._last_depth

    async def _match(self) -> tuple[int, Worker, Slot]:
        """The next lane that has an entry whose owner may start a job, once a slot is free."""
        while True:
            lane = self._next_lane()
            if lane is not None and (
                found := self._pool.idle_slot(checkpoint_of(self._held[lane].job))
            ):
                return lane, *found
            await self._pool.changed()

    def _next_lane(self) -> int | None:
        """The one whose owner runs the fewest jobs here; among equals, the next in turn."""
        jobs, free_slots = self._running_jobs, self._pool.free_slots()
        places = [
            (jobs.of(held.owner, self.endpoint), (lane - self._last_lane - 1) % LANES, lane)
            for lane, held in self._held.items()
            if jobs.may_start(held.owner, self.endpoint, free_slots=free_slots)
        ]
        return min(places)[-1] if places else None

    async def _pull(self, lane: int) -> None:
        await keep_trying(lambda: self._pull_from(lane), on=_PASSING)

    async def _pull_from(self, lane: int) -> None:
        async with self._queue.lane(self.endpoint.id, lane) as entries:
            while True:
                for entry in await entries.next(most=1, timeout_s=_PULL_TIMEOUT_S):
                    await self._take(lane, entry)

    async def _take(self, lane: int, entry: QueueEntry) -> None:
        try:
            await self._receive(lane, entry)
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

    async def _receive(self, lane: int, entry: QueueEntry) -> None:
        job = await self._writer.load(entry.job_id)
        if job is None or job.end is not None:
            await entry.ack()
        elif not await self._is_running(job, entry):
            await self._hold(lane, _Held(job, entry))

    async def _is_running(self, job: Job, entry: QueueEntry) -> bool:
        """Its lease ran out: the event log was not available, or its actor hangs."""
        found = self._pool.running(job.id)
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

    async def _hold(self, lane: int, held: _Held) -> None:
        """Keep an entry in hand until a slot takes it, or its job ends without one.

        After some time it goes back, to be taken again behind those that were delivered before and
        not renewed: the job that has the slot may hang, and be in this lane, too.
        """
        self._held[lane] = held
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
                del self._held[lane]  # no slot takes it from here on
                await held.entry.nak()
        except asyncio.CancelledError:
            if not held.taken.is_set():
                await held.entry.nak()
            raise
        finally:
            if self._held.get(lane) is held:
                del self._held[lane]

    async def _has_ended(self, held: _Held) -> bool:
        """Cancelled meanwhile, or out of time without ever getting a slot."""
        job = await self._writer.load(held.job.id) or held.job
        expire = Expire(utc_now(), self._pool.trouble())
        held.job = (await self._writer.execute(expire, job)).job or job
        return held.job.end is not None and not held.taken.is_set()

    async def _run_held(self, held: _Held, worker: Worker, slot: Slot) -> None:
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
        if outcome is RunOutcome.RETRY:
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
        writer = slot.writer
        job = await self._writer.load(held.job.id)
        if slot.entry is not held.entry:
            return
        if job is None or job.end is not None:
            return
        if job.actor is not None and job.actor == writer:
            blame = await self._blame(job, worker, death)
            failed = FailAttempt(
                job.actor, f"The job's actor died: {death}", final=False, blame=blame
            )
            await self._writer.execute(failed, job)
            await held.entry.nak()
        elif not isinstance(death, ActorLost):
            await self._count_failure(job, held)

    async def _blame(self, job: Job, worker: Worker, death: ActorDied) -> Blame:
        """What the death of its actor says of a job. Its run on the engine ends with it."""
        had_begun = await worker.cancel_run(job.id, job.attempts)
        is_spared = isinstance(death, ActorLost) or had_begun is False
        return Blame.BYSTANDER if is_spared else Blame.SUSPECT

    async def _count_failure(self, job: Job, held: _Held) -> None:
        """The actor died before it began an attempt. After too many such deaths the job ends."""
        command = FailDispatch(
            held.job.attempts,
            "its job actor died before an attempt began",
            max_failures=self._max_dispatch_failures,
        )
        outcome = await self._writer.execute(command, job)
        if outcome.job is not None and outcome.job.end is not None:
            fields = {"action": "dead_letter", "job_id": job.id}
            logger.warning("gave up dispatching", extra=fields)
            await held.entry.ack()
