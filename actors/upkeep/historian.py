"""Historian: moves the events of jobs that are over from the log to history objects.

A job is over when three conditions hold:

- The job has ended, and so has the delivery of its callback.
- The database row of the job contains the last event of the job.
- `DARKROOM_LOG_HOT_S` seconds have passed since `hot_since`, and since the end of the delivery.

For each such job a round takes these steps. Each of them may be repeated, even by two historians at
the same time:

1. It stores one history object in the folder of the job's images.
2. It writes the key of the object into the row, and removes the former object of the row.
3. It purges the events from the log.
4. It sets `hot_since` in the row to NULL.

| the process dies after this step  | the next round                                       |
|-----------------------------------|------------------------------------------------------|
| it read the events                | begins again with the same jobs                      |
| it stored an object               | stores the same object again                         |
| it wrote the keys into the rows   | purges the events, which are all in the objects      |
| it removed a former object        | purges the events, which are all in the objects      |
| it purged some of the events      | purges the other events                              |
| it purged all events              | finds nothing to purge, and sets `hot_since` to NULL |
| it set `hot_since` to NULL        | does not select these jobs                           |

If the process dies before it removes a former object, the janitor removes this object.

A purge removes events up to the last event in the object, so later events stay in the log. After
later events, a new object stores all events of the job. The history of an erased job has only the
event `Erased`.

A job may be erased or removed while its object is written. Its row has then changed, so nothing is
purged, and the object is removed again. If the process dies before it removes the object, the
janitor does so: when it checks the erasure a second time, or as a file that belongs to no job
(`janitor.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from actors.upkeep.janitor import PERIOD_S, UPKEEP_LEASE_S
from events.cloud_events import decode_all
from events.delivery import fold_delivery, has_delivery
from events.errors import HistoryBroken, ServiceError
from events.history import StoredHistory, read_history, write_history
from events.job import is_readable
from events.log import APPEND_TIMEOUT_S, EventLog, utc_now
from events.store.ended_jobs import EndedJob, EndedJobs
from events.store.leases import Leases
from events.types import Erased, Event, Submitted
from storage.file_names import HistoryName
from storage.images import ImageNotFound, ImageStore, ImageStoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_LEASE_NAME = "historian"
_AT_ONCE = 8
"""Largest number of jobs whose objects are written, or whose events are purged, at the same time.
Other users of the image store need some of its 16 threads.
"""
_BATCH_JOBS = 500
_BATCH_BYTES = 32 * 1024**2
"""Approximate size of the events that are in memory at the same time."""
_HISTORY_BYTES = 2**20
"""Assumed size in bytes of a history object, because the database row does not state it."""
_LOOK_UP_S = 10.0
"""Longest time in seconds for which a submission looks for an earlier job with the same idempotency
key.
"""


@dataclass(frozen=True, slots=True)
class Over:
    """The job is over, so its events may leave the log."""

    history: StoredHistory
    """The required content of the history object."""
    version: int

    @property
    def key(self) -> str:
        name = HistoryName(self.history.job_id, self.version, len(self.history.deliveries))
        return name.key


@dataclass(frozen=True, slots=True)
class HotUntil:
    """The job is not over, so its events stay in the log."""

    since: datetime
    """The new `hot_since` of the job. The job is checked again after the hot time."""


class Historian:
    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        log: EventLog,
        deliveries: EventLog,
        images: ImageStore,
        ended_jobs: EndedJobs,
        hot_s: float,
        lease_s: float = UPKEEP_LEASE_S,
        period_s: float = PERIOD_S,
        batch: int = _BATCH_JOBS,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """The events of an ended job stay in the log for `hot_s` seconds.

        The lease of this process ends `lease_s` seconds after its last renewal. A round handles at
        most `batch` jobs.
        """
        self._holder = holder
        self._leases = leases
        self._log = log
        self._deliveries = deliveries
        self._images = images
        self._ended_jobs = ended_jobs
        # A submission with an idempotency key first looks for the row of an earlier job, and then
        # appends. If the events of the earlier job left the log between these two steps, a second
        # job would be created. So the hot time is at least as long as both steps together.
        self._hot_time = timedelta(seconds=max(hot_s, _LOOK_UP_S + APPEND_TIMEOUT_S))
        self._lease_s = lease_s
        self._period_s = period_s
        self._batch = batch
        self._now = now

    async def run(self) -> None:
        """Repeat rounds until cancelled."""
        while True:
            more = False
            try:
                if await self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=self._lease_s):
                    more = await self.round()
            except (ServiceError, ImageStoreError) as error:
                fields = {"action": "keep_history", "error": str(error)}
                logger.warning("a round was ended early", extra=fields)
            except Exception:
                logger.exception("round failed", extra={"action": "keep_history"})
            await asyncio.sleep(0 if more else self._period_s * random.uniform(0.8, 1.2))

    async def round(self) -> bool:
        """Move at most one batch of jobs. Returns whether further jobs may be due.

        Raises DatabaseUnavailable, LogUnavailable, ImageStoreUnavailable.
        """
        due = await self._ended_jobs.due_for_move(self._now() - self._hot_time, limit=self._batch)
        for jobs in _portions(due, most_bytes=_BATCH_BYTES):
            await self._move(jobs)
        return len(due) == self._batch

    async def _move(self, jobs: Sequence[EndedJob]) -> None:
        ids = [job.id for job in jobs]
        events, deliveries = await self._log.read_raw(ids), await self._deliveries.read_raw(ids)

        async def store(job: EndedJob) -> Over | HotUntil | Exception:
            in_log = StoredHistory(job.id, events.get(job.id, ()), deliveries.get(job.id, ()))
            try:
                return await self._store(job, in_log)
            except (ImageStoreError, ValueError) as error:
                fields = {"action": "keep_history", "job_id": job.id, "error": str(error)}
                logger.warning("a history was not stored", extra=fields)
                return error

        async def purge(job: EndedJob) -> None:
            former = histories[job.id][0].history
            if former is not None and former != job.history:
                await self._images.delete(former)
            for log, stored in ((self._deliveries, deliveries), (self._log, events)):
                if job.id in stored:
                    await log.purge(job.id, upto=stored[job.id][-1].sequence)

        outcomes = await _each(store, jobs)
        errors = [each for each in outcomes if isinstance(each, Exception)]
        if errors and len(errors) == len(outcomes):
            raise errors[0]  # The store is probably unavailable, so the jobs are not postponed.
        # Jobs whose objects cannot be stored are postponed, so that they do not delay other jobs.
        verdicts = [
            HotUntil(self._now()) if isinstance(each, Exception) else each for each in outcomes
        ]
        await self._postpone(zip(jobs, verdicts, strict=True))
        histories = {
            job.id: (job, verdict)
            for job, verdict in zip(jobs, verdicts, strict=True)
            if isinstance(verdict, Over)
        }
        named = await self._ended_jobs.store_history_keys(
            {job: over.key for job, over in histories.values()}
        )
        await self._remove_unnamed(
            [over for job_id, (_, over) in histories.items() if job_id not in _ids(named)]
        )
        await _each(purge, named)
        await self._ended_jobs.mark_moved(named, self._now())
        if named:
            fields = {"action": "keep_history", "jobs": len(named)}
            logger.info("histories stored", extra=fields)

    async def _store(self, job: EndedJob, in_log: StoredHistory) -> Over | HotUntil:
        """Store the object of a job that is over, unless the row of the job already names it."""
        history = in_log
        if job.history is not None:
            try:
                history = (await read_history(self._images, job.history)).joined(in_log)
            # One unreadable history must not stop the round.
            except (HistoryBroken, ImageNotFound) as error:
                fields = {"action": "keep_history", "job_id": job.id, "error": str(error)}
                logger.error("a history cannot be read", extra=fields)
        verdict = await asyncio.to_thread(
            judge, job, history, now=self._now(), hot_time=self._hot_time
        )
        if isinstance(verdict, Over) and (verdict.key != job.history or history is in_log):
            await write_history(self._images, verdict.key, verdict.history)
        return verdict

    async def _postpone(self, verdicts: Iterable[tuple[EndedJob, Over | HotUntil]]) -> None:
        hot: dict[datetime, list[EndedJob]] = {}
        for job, verdict in verdicts:
            if isinstance(verdict, HotUntil):
                hot.setdefault(verdict.since, []).append(job)
        for since, jobs in hot.items():
            await self._ended_jobs.postpone(jobs, since)

    async def _remove_unnamed(self, stored: Sequence[Over]) -> None:
        """Remove the objects of jobs that were erased or removed while their objects were written.

        No row can name these objects later, because the version of a job only grows, and a new job
        with the id of a removed job is not over yet.
        """
        rows = await self._ended_jobs.rows_of([over.history.job_id for over in stored])
        for over in stored:
            row = rows.get(over.history.job_id)
            if row is None or (row.version > over.version and row.history != over.key):
                await self._images.delete(over.key)


def judge(
    job: EndedJob, history: StoredHistory, *, now: datetime, hot_time: timedelta
) -> Over | HotUntil:
    """Return whether the job is over.

    `history` has all events of the job, from the log and from its history object.
    """
    events = decode_all(history.events, job_id=job.id)
    if not events or events[-1].version != job.version:
        return HotUntil(now)
    if isinstance(events[-1].data, Erased):
        erased = replace(history, events=history.events[-1:], deliveries=())
        return Over(erased, job.version)
    deliveries = decode_all(history.deliveries, job_id=job.id)
    if not _is_whole(events) or not _is_whole(deliveries):
        return HotUntil(now)
    first = events[0].data
    if isinstance(first, Submitted) and has_delivery(first):
        if not fold_delivery(deliveries).ended:
            return HotUntil(now)
        if (ended_at := deliveries[-1].time) > now - hot_time:
            return HotUntil(ended_at)
    return Over(history, job.version)


def _is_whole(events: list[Event]) -> bool:
    """Return whether no event is missing and every event can be read."""
    versions = [event.version for event in events if is_readable(event)]
    return versions == list(range(1, len(events) + 1))


def _portions(jobs: Iterable[EndedJob], *, most_bytes: int) -> Iterator[list[EndedJob]]:
    """Divide the jobs into lists. A list ends when the sizes of its jobs reach `most_bytes`."""
    portion: list[EndedJob] = []
    size_bytes = 0
    for job in jobs:
        portion.append(job)
        size_bytes += job.log_bytes if job.history is None else _HISTORY_BYTES
        if size_bytes >= most_bytes:
            yield portion
            portion, size_bytes = [], 0
    if portion:
        yield portion


def _ids(jobs: Iterable[EndedJob]) -> set[str]:
    return {job.id for job in jobs}


async def _each(do: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Apply `do` to all items, `_AT_ONCE` at a time. Raises the first error."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> R:
        async with limit:
            return await do(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
