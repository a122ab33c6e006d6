"""Archiver: moves the events of ended jobs from the log to the archive, and merges small segments.

| dies after                  | the next round finds                                            |
|-----------------------------|-----------------------------------------------------------------|
| reading                     | the same jobs                                                   |
| an object was stored        | the same jobs; `ArchiveWriter.recover` removes the object       |
| the rows name the segment   | a segment whose jobs are to be purged from the log: purges them |
| some of them were purged    | the same                                                        |

A purge goes up to the last event that the segment has, so what was stored meanwhile stays.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from datetime import date, datetime, timedelta

from actors.upkeep.archivable import Archivable, HotUntil, judge
from events.archive.archive import Archive, SegmentRef
from events.archive.segment import ArchivedJob
from events.errors import SegmentBroken, ServiceError
from events.ids import partition_of
from events.log import EventLog, StoredEvent, utc_now
from events.store.archiving.hot_jobs import HotJob, HotJobs
from events.store.archiving.segments import Segments, SegmentState
from events.store.archiving.writer import ArchiveWriter
from events.store.leases import Leases
from settings.log import LogSettings
from storage.images import ImageNotFound, ImageStoreError

logger = logging.getLogger(__name__)

_LEASE_NAME = "archiver"
_MERGED = 8
"""So many segments of about one size become one."""


class Archiver:
    """Two may overlap for a while: every step may be repeated."""

    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        log: EventLog,
        deliveries: EventLog,
        hot_jobs: HotJobs,
        segments: Segments,
        archive: Archive,
        writer: ArchiveWriter,
        settings: LogSettings,
        lease_s: float,
        period_s: float,
        batch: int = 50_000,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`lease_s`: after this silence another one takes up what it left.

        `batch`: how many jobs one round looks at.
        """
        self._holder = holder
        self._leases = leases
        self._log = log
        self._deliveries = deliveries
        self._hot_jobs = hot_jobs
        self._segments = segments
        self._archive = archive
        self._writer = writer
        self._settings = settings
        self._lease_s = lease_s
        self._period_s = period_s
        self._batch = batch
        self._now = now

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            more = False
            try:
                if await self._lead():
                    more = await self.round()
            except (ServiceError, ImageStoreError) as error:
                fields = {"action": "archive", "error": str(error)}
                logger.warning("round was cut short", extra=fields)
            except Exception:
                logger.exception("round failed", extra={"action": "archive"})
            await asyncio.sleep(0 if more else self._period_s * random.uniform(0.8, 1.2))

    async def _lead(self) -> bool:
        return await self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=self._lease_s)

    async def round(self) -> bool:
        """Move at most a batch of jobs; True where more may be due."""
        await self._take_up()
        due = await self._hot_jobs.cool(self._now() - self._settings.hot_time, limit=self._batch)
        portions = to_move(
            due, most=self._settings.batch_jobs, most_bytes=self._settings.batch_bytes
        )
        for day, partition, jobs in portions:
            if not await self._lead():
                return False
            await self._move(day, partition, jobs)
        await self._merge()
        return len(due) == self._batch

    async def _take_up(self) -> None:
        """What a writer that died has left."""
        before = self._now() - timedelta(seconds=self._lease_s)
        await self._writer.recover(before=before)
        for ref in await self._segments.in_state(SegmentState.PURGING, since=before):
            with _telling(ref.key):
                await self._end_purge(ref)

    async def _end_purge(self, ref: SegmentRef) -> None:
        try:
            async for jobs in self._archive.batches(ref):
                await self._purge(jobs)
        except ImageNotFound:
            await self._segments.forget([ref])  # what the log has still goes to another one
            raise
        await self._segments.purged(ref, self._now())

    async def _merge(self) -> None:
        small = await self._segments.small(self._settings.segment_bytes, limit=self._batch)
        for refs in to_merge(
            small, most_bytes=self._settings.segment_bytes, today=self._now().date()
        ):
            with _telling(refs[0].key):
                await self._writer.merge(refs)

    async def _move(self, day: date, partition: int, jobs: Sequence[HotJob]) -> None:
        ids = [job.id for job in jobs]
        events, deliveries = await self._log.stored(ids), await self._deliveries.stored(ids)
        in_log = {
            job: ArchivedJob(job.id, events.get(job.id, ()), deliveries.get(job.id, ()))
            for job in jobs
        }
        new = {job: stored for job, stored in in_log.items() if job.segment is None}
        if new := await self._ready(new):
            await self._settle(await self._writer.add(day, partition, new), new)
        for job in jobs:
            if job.segment is not None:
                was_read = False
                with _telling(job.segment):
                    await self._move_again(job, in_log[job])
                    was_read = True
                if not was_read:
                    await self._hot_jobs.postpone([job], self._now())

    async def _move_again(self, job: HotJob, in_log: ArchivedJob) -> None:
        """One of which the archive has something already, as its row says."""
        ref = await self._segments.find(job.id)
        archived = None if ref is None else await self._archive.read(ref, job.id)
        if not (ready := await self._ready({job: archived.joined(in_log) if archived else in_log})):
            return
        if ref is None:
            day, partition = job.ended_at.date(), partition_of(job.id)
            await self._settle(await self._writer.add(day, partition, ready), ready)
        else:
            await self._settle(await self._writer.update(ref, ready), ready)

    async def _ready(self, jobs: Mapping[HotJob, ArchivedJob]) -> dict[HotJob, ArchivedJob]:
        """Those that may leave the log, as the archive is to have them. Postpones the others."""
        now, hot_time = self._now(), self._settings.hot_time

        def judged() -> list[Archivable | HotUntil]:
            return [judge(job, each, now=now, hot_time=hot_time) for job, each in jobs.items()]

        ready: dict[HotJob, ArchivedJob] = {}
        hot: dict[datetime, list[HotJob]] = defaultdict(list)
        for job, verdict in zip(jobs, await asyncio.to_thread(judged), strict=True):
            match verdict:
                case Archivable(archived=archived):
                    ready[job] = archived
                case HotUntil(since=since):
                    hot[since].append(job)
        for since, members in hot.items():
            await self._hot_jobs.postpone(members, since)
        return ready

    async def _settle(self, ref: SegmentRef | None, jobs: Mapping[HotJob, ArchivedJob]) -> None:
        if ref is not None:  # else somebody changed one of them: the next round finds it
            await self._purge(jobs.values())
            await self._segments.purged(ref, self._now())
            fields = {"action": "archive", "segment": ref.key, "jobs": len(jobs)}
            logger.info("jobs archived", extra=fields)

    async def _purge(self, jobs: Iterable[ArchivedJob]) -> None:
        """Take out of the log what the archive has of these jobs. Raises LogUnavailable."""
        turns = asyncio.Semaphore(self._settings.purges_at_once)

        async def purge(log: EventLog, job_id: str, events: Sequence[StoredEvent]) -> None:
            if events:
                async with turns:
                    await log.purge(job_id, upto=events[-1].sequence)

        try:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(purge(self._deliveries, job.job_id, job.deliveries))
                    group.create_task(purge(self._log, job.job_id, job.events))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors


@contextmanager
def _telling(segment: str) -> Generator[None]:
    """One segment that cannot be read must not stop the others."""
    try:
        yield
    except (SegmentBroken, ImageNotFound) as error:
        fields = {"action": "archive", "segment": segment, "error": str(error)}
        logger.error("segment cannot be read", extra=fields)


def to_move(
    jobs: Iterable[HotJob], *, most: int, most_bytes: int
) -> Iterator[tuple[date, int, list[HotJob]]]:
    """By day and partition, at most so many together, and no more once they have so many bytes."""
    groups: dict[tuple[date, int], list[HotJob]] = defaultdict(list)
    for job in jobs:
        groups[job.ended_at.date(), partition_of(job.id)].append(job)
    for (day, partition), members in groups.items():
        portion: list[HotJob] = []
        size_bytes = 0
        for job in members:
            portion.append(job)
            size_bytes += job.log_bytes
            if len(portion) == most or size_bytes >= most_bytes:
                yield day, partition, portion
                portion, size_bytes = [], 0
        if portion:
            yield day, partition, portion


def to_merge(
    small: Iterable[tuple[SegmentRef, int]], *, most_bytes: int, today: date
) -> Iterator[list[SegmentRef]]:
    """Eight of about one size, so that no job is written again often; all of a day that is over."""
    groups: dict[tuple[date, int, int], list[tuple[SegmentRef, int]]] = defaultdict(list)
    for ref, size_bytes in small:
        is_over = ref.day < today - timedelta(days=1)
        size = 0 if is_over else size_bytes.bit_length() // 3
        groups[ref.day, ref.partition, size].append((ref, size_bytes))
    for (day, _, _), members in groups.items():
        fewest = 2 if day < today - timedelta(days=1) else _MERGED
        some: list[SegmentRef] = []
        total = 0
        for ref, size_bytes in members:
            if some and total + size_bytes > most_bytes:
                if len(some) >= fewest:
                    yield some
                some, total = [], 0
            some.append(ref)
            total += size_bytes
        if len(some) >= fewest:
            yield some
