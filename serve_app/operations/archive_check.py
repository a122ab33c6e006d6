"""Checks the segments of the archive, the jobs in them, and the rows that name them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress

from events.archive.archive import SegmentRef, segment_ref
from events.archive.segment import ArchivedJob
from events.errors import SegmentBroken
from events.store.archiving.segments import SegmentState
from events.store.maintenance.contents import JobRow
from events.streams.log_streams import LogPlace
from serve_app.operations.disagreements import Check, Disagreement, Kind
from serve_app.operations.job_check import JobCheck
from serve_app.operations.places import Places, archived_in, stored_of, together
from storage.images import ImageNotFound

_BATCH = 64
_MOST_INDEXES = 64
_MOVED = (SegmentState.WRITING, SegmentState.DOOMED, SegmentState.GONE)
"""The jobs of such a segment are elsewhere."""


class ArchiveCheck:
    def __init__(self, places: Places, jobs: JobCheck) -> None:
        self._places = places
        self._jobs = jobs
        self._ids: OrderedDict[SegmentRef, frozenset[str] | None] = OrderedDict()
        """The jobs of the segments that were read last."""

    async def walk(self) -> AsyncGenerator[tuple[Check, Sequence[str]]]:
        """Every segment, then its jobs."""
        async for ref in self._places.archive.segments():
            states = await self._places.rows.segment_states([ref.id])
            if states.get(ref.id) in _MOVED:
                continue
            yield self.segments, [ref.key]
            jobs: dict[str, ArchivedJob] = {}
            with suppress(SegmentBroken, ImageNotFound):
                async for job in self._places.archive.scan(ref):
                    jobs[job.job_id] = job
                    if len(jobs) == _BATCH:
                        yield _JobsOfSegment(self, ref, jobs), list(jobs)
                        jobs = {}
            yield _JobsOfSegment(self, ref, jobs), list(jobs)

    async def segments(self, keys: Sequence[str]) -> list[Disagreement]:
        """Whether the segments under these keys are what was written."""
        found = []
        for key in keys:
            if (ref := segment_ref(key)) is None:
                continue
            try:
                with suppress(ImageNotFound):
                    await self._places.archive.verify(ref)
            except SegmentBroken as error:
                found.append(Disagreement(Kind.SEGMENT_DAMAGED, str(error), file=key))
        return found

    async def jobs(self, ref: SegmentRef, jobs: Mapping[str, ArchivedJob]) -> list[Disagreement]:
        """Jobs as this segment has them."""
        checkpoint = await self._places.read_model.checkpoint()
        rows = await self._places.rows.jobs(jobs)
        at = await self._places.rows.segments_of(jobs)
        return await together(
            self._job(job, rows.get(job_id), checkpoint=checkpoint)
            if at.get(job_id, ref) == ref
            else self._copy(ref, job, at.get(job_id))
            for job_id, job in jobs.items()
        )

    async def read(self, ref: SegmentRef, job_ids: Sequence[str]) -> dict[str, ArchivedJob]:
        """What the segment has of these jobs now."""
        found = {job_id: await archived_in(self._places, ref, job_id) for job_id in job_ids}
        return {job_id: job for job_id, job in found.items() if job is not None}

    async def _job(
        self, job: ArchivedJob, row: JobRow | None, *, checkpoint: LogPlace
    ) -> list[Disagreement]:
        if row is None or row.columns["archived_at"] is None:  # the log may have something, too
            in_log = (await stored_of(self._places, [job.job_id])).get(job.job_id, job)
            job = job.joined(in_log)
        return await self._jobs.job(job, row, checkpoint=checkpoint)

    async def _copy(
        self, ref: SegmentRef, job: ArchivedJob, other_ref: SegmentRef | None
    ) -> list[Disagreement]:
        """A job that is in the segment that its row names as well."""
        other = (
            None if other_ref is None else await archived_in(self._places, other_ref, job.job_id)
        )
        if other is None or other == job:
            return []
        text = f"{ref.key} has other events of it than the segment that its row names."
        return [Disagreement(Kind.ARCHIVED_TWICE, text, job.job_id)]

    async def rows(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Jobs whose rows name a segment: whether it has them."""
        at = await self._places.rows.segments_of(job_ids)
        found = []
        for job_id, ref in at.items():
            ids: frozenset[str] | None = frozenset()
            if ref is not None:
                ids = await self._ids_of(ref)
            if ids is not None and job_id not in ids:
                key = "a segment that nothing knows" if ref is None else ref.key
                text = f"Its row names {key}, which does not have it."
                found.append(Disagreement(Kind.SEGMENT_MISSING, text, job_id))
        return found

    async def _ids_of(self, ref: SegmentRef) -> frozenset[str] | None:
        """The jobs of a segment; None for one that is damaged, which is told of as such."""
        if ref not in self._ids:
            try:
                ids = [job.job_id async for job in self._places.archive.scan(ref)]
                self._ids[ref] = frozenset(ids)
            except ImageNotFound:
                self._ids[ref] = frozenset()
            except SegmentBroken:
                self._ids[ref] = None
            if len(self._ids) > _MOST_INDEXES:
                self._ids.popitem(last=False)
        self._ids.move_to_end(ref)
        return self._ids[ref]


class _JobsOfSegment:
    """Some jobs of one segment. They are held for the first look, and read again for another."""

    def __init__(self, check: ArchiveCheck, ref: SegmentRef, jobs: Mapping[str, ArchivedJob]):
        self._check = check
        self._ref = ref
        self._jobs: Mapping[str, ArchivedJob] | None = jobs

    async def __call__(self, job_ids: Sequence[str]) -> list[Disagreement]:
        jobs, self._jobs = self._jobs, None
        if jobs is None:
            jobs = await self._check.read(self._ref, job_ids)
        return await self._check.jobs(self._ref, jobs)
