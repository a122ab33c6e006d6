"""EndpointDispatcher: what waits on one endpoint, in turns, onto its workers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial

from actors.dispatch.cluster import ActorDied
from actors.dispatch.deaths import AfterDeath, Deaths
from actors.dispatch.free_slots import Place
from actors.dispatch.pool import WorkerPool
from actors.dispatch.slot import Slot
from actors.dispatch.worker import Worker
from actors.endpoints.status import EndpointStatus
from actors.waiting.choice import Chosen, choice_for
from actors.waiting.deadlines import Deadlines
from actors.waiting.forgotten import Forgotten
from actors.waiting.given import Given
from actors.waiting.in_hand import PASSING, Held, InHand, drop_entry
from actors.waiting.running_jobs import RunningJobs
from actors.worker.job import RunOutcome
from events.errors import LogUnavailable
from events.job import Job
from events.log import JobWriter
from events.queue import JobQueue, QueueEntry
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings
from telemetry.tracing.log_fields import about

logger = logging.getLogger(__name__)

_BUSY_S = 2.0
"""How soon a job comes again whose actor runs another one."""
_HOLD_LEASES = 2
"""What a dispatcher has in hand comes again about when another one takes over."""
_FORGOTTEN_LEASES = 3
"""An entry that nobody was delivered for so long is put on the queue again."""


class EndpointDispatcher:
    """Gives each owner of what waits a turn: one caller's backlog holds up no other caller."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        running_jobs: RunningJobs,
        status: EndpointStatus,
        lease_s: float,
        settings: DispatchSettings,
    ) -> None:
        """`writer`: on a log that waits out outages. `running_jobs`: of all endpoints.

        `lease_s`: how long an entry is its holder's without a renewal.
        """
        self.endpoint = endpoint
        self.status = status
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._running_jobs = running_jobs
        self._answer_s = lease_s / 3
        """How long an actor may take to say that it runs a job."""
        self._deaths = Deaths(writer, max_dispatch_failures=settings.max_dispatch_failures)
        self._choice = choice_for(endpoint, pool.free, running_jobs, settings)
        self._waiting = self._choice.waiting
        self._deadlines = self._make_deadlines(settings)
        hold_s = min(_HOLD_LEASES * settings.dispatcher_lease_s, lease_s)
        self.in_hand = self._make_in_hand(settings.jobs_in_hand, hold_s)
        self._forgotten = self._make_forgotten(lease_s)
        self._given = Given()
        self._last_depth = 0

    def _make_deadlines(self, settings: DispatchSettings) -> Deadlines:
        return Deadlines(
            self.endpoint.id,
            queue=self._queue,
            writer=self._writer,
            is_running=lambda job_id: self._pool.free.running(job_id) is not None,
            why=self._pool.trouble,
            period_s=settings.deadlines_period_s,
        )

    def _make_forgotten(self, lease_s: float) -> Forgotten:
        return Forgotten(
            self.endpoint.id,
            queue=self._queue,
            writer=self._writer,
            is_known=self._is_known,
            takes_all=lambda: self.in_hand.takes_all,
            patience_s=_FORGOTTEN_LEASES * lease_s,
        )

    def _make_in_hand(self, most: int, hold_s: float) -> InHand:
        return InHand(
            self.endpoint.id,
            queue=self._queue,
            writer=self._writer,
            waiting=self._waiting,
            is_running=self._is_running,
            on_new=self._pool.wake,
            most=most,
            hold_s=hold_s,
        )

    async def run(self) -> None:
        """Dispatch until cancelled; what runs by then runs on."""
        with self._running_jobs.telling(self._note_end):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pool.keep(self._demand))
                group.create_task(self._deadlines.run())
                group.create_task(self._forgotten.run())
                group.create_task(self.in_hand.run())
                while True:
                    chosen = await self._choose()
                    held = self._take_chosen(chosen)
                    run = group.create_task(self._run_held(held, (chosen.worker, chosen.slot)))
                    run.add_done_callback(partial(self._note_done, held))

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

    def _take_chosen(self, chosen: Chosen) -> Held:
        held = self.in_hand.take(chosen.job.job_id)
        self._given.add(held)
        chosen.slot.reserve(held.entry)
        self._running_jobs.add(held.waiting.owner, self.endpoint)
        self._waiting.take(held.waiting)
        self._waiting.note_running(held.waiting.owner)
        return held

    def _is_known(self, job_id: str) -> bool:
        is_given = bool(self._given.of(job_id))
        return is_given or job_id in self.in_hand or self._pool.free.running(job_id) is not None

    async def _is_running(self, job: Job, entry: QueueEntry) -> bool:
        """Its lease ran out: the event log was not available, or its actor hangs."""
        found = self._pool.free.running(job.id)
        if found is None:
            if is_maybe := job.is_attempted and self._pool.may_run(job.actor):
                await entry.hold(for_s=_BUSY_S)
            return is_maybe
        worker, slot = found
        given = slot.entry
        if self._is_just_given(job) or await slot.take_delivery(entry, timeout_s=self._answer_s):
            return True
        with about(job):
            logger.warning("replacing", extra={"action": "actor_replaced", "job_id": job.id})
        worker.mark_unready()  # its attempt may have failed just now, by the engine
        await worker.cancel_run(job.id, job.attempts)
        if slot.job_id == job.id and slot.entry is given:  # and not anew, after another look
            slot.replace()
        return False

    def _is_just_given(self, job: Job) -> bool:
        """A slot was given it while its entry was on the way to us: nobody has begun yet."""
        since = time.monotonic() - self._answer_s
        return any(
            held.attempts == job.attempts and held.taken_at > since
            for held in self._given.of(job.id)
        )

    async def _run_held(self, held: Held, place: Place) -> None:
        worker, slot = place
        try:
            job = await self.in_hand.ready(held)
            if slot.entry is not held.entry:
                return  # Replaced: there was no log for so long that the job came again.
            if job is None:
                self._end_run(held)  # before the refund: its owner is to be the next one
                self._waiting.refund(held.waiting)
                slot.release()
            else:
                with about(job):
                    await self._dispatch(held, job, worker, slot)
        except Exception as error:  # noqa: BLE001 - `drop_entry` logs it
            if not isinstance(error, PASSING):
                await drop_entry(held.entry, error, writer=self._writer)
            if slot.entry is held.entry:
                slot.renew()

    def _note_done(self, held: Held, _: asyncio.Task[None]) -> None:
        """Called for a run that was cancelled before it began, too."""
        self._end_run(held)

    def _end_run(self, held: Held) -> None:
        """It may have been ended before."""
        if held in self._given:
            self._given.remove(held)
            self._running_jobs.remove(held.waiting.owner, self.endpoint)

    def _note_end(self, owner: str) -> None:
        """One of this owner's jobs ended, here or on another endpoint."""
        self._waiting.release(owner)
        self._waiting.note_running(owner)
        self._pool.wake()

    async def _dispatch(self, held: Held, job: Job, worker: Worker, slot: Slot) -> None:
        death: ActorDied | None = None
        outcome: RunOutcome | None = None
        try:
            outcome = await slot.run(held.entry, job)
        except ActorDied as error:
            fields = {"action": "actor_died", "job_id": job.id, "error": str(error)}
            logger.warning("job actor died", extra=fields)
            death = error
        if slot.entry is not held.entry:
            return  # Its actor hung and was replaced; the job came again, perhaps to this slot.
        if outcome is RunOutcome.BUSY:
            self._waiting.refund(held.waiting)
            await held.entry.hold(for_s=_BUSY_S)
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

    async def _give_back(self, held: Held, worker: Worker, slot: Slot, death: ActorDied) -> None:
        """At once, if the dead actor was the job's writer; else its lease has to run out."""
        actor = slot.writer
        job = await self._writer.load(held.job_id)
        if slot.entry is not held.entry or job is None:
            return
        after = await self._deaths.note(
            job, death, worker=worker, actor=actor, attempts=held.attempts
        )
        match after:
            case AfterDeath.ENDED:
                await held.entry.ack()
            case AfterDeath.BROKEN_OFF:
                await held.entry.nak()
            case AfterDeath.NOT_BEGUN:
                self._waiting.refund(held.waiting)
