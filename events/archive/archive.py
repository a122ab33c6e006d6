"""The segments of the archive as objects in the image store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

from events.archive.segment import (
    ArchivedJob,
    PackedBlock,
    SegmentIndex,
    check,
    read_index,
    segment_of,
    unpack,
)
from events.errors import SegmentBroken
from storage.images import ImageNotFound, ImageStore
from storage.keys import ARCHIVE

T = TypeVar("T")

_HEAD_BYTES = 32 * 1024
"""As much as the index of a segment of a few MB takes."""

_KEY = re.compile(rf"{ARCHIVE}/(\d{{4}}-\d\d-\d\d)/(\d+)/([0-9a-f-]+)\.gz")


@dataclass(frozen=True, slots=True, order=True)
class SegmentRef:
    """Names one segment."""

    day: date
    """On which its jobs ended, in UTC."""
    partition: int
    id: str

    @property
    def key(self) -> str:
        """In the image store."""
        return f"{ARCHIVE}/{self.day.isoformat()}/{self.partition:02}/{self.id}.gz"


def segment_ref(key: str) -> SegmentRef | None:
    """The segment under a key of the image store; None where it is no segment's."""
    found = _KEY.fullmatch(key)
    with suppress(ValueError):  # no such day
        if found is not None:
            return SegmentRef(date.fromisoformat(found[1]), int(found[2]), found[3])
    return None


class Archive:
    """Every method raises ImageStoreUnavailable; readers also ImageNotFound, SegmentBroken."""

    def __init__(self, images: ImageStore) -> None:
        self._images = images

    async def segments(self) -> AsyncGenerator[SegmentRef]:
        """Every segment that is stored, also one that no row of the read model names."""
        async for files in self._images.files(ARCHIVE):
            for file in files:
                if (ref := segment_ref(file.key)) is not None:
                    yield ref

    async def has(self, ref: SegmentRef) -> bool:
        """Whether the segment is stored."""
        with suppress(ImageNotFound):
            await self._images.size(ref.key)
            return True
        return False

    async def read(self, ref: SegmentRef, job_id: str) -> ArchivedJob | None:
        """One job, by its index and its block; None where the segment does not have it."""
        head = await self._images.get(ref.key, range(_HEAD_BYTES))
        while (index := _about(ref, read_index, head)) is None:
            longer = await self._images.get(ref.key, range(4 * len(head)))
            if len(longer) == len(head):
                raise SegmentBroken(f"The segment {ref.key} ends within its index.")
            head = longer
        block = index.block_of(job_id)
        if block is None:
            return None
        data = await self._images.get(ref.key, index.part(block))
        jobs = await asyncio.to_thread(_about, ref, unpack, data)
        return next((job for job in jobs if job.job_id == job_id), None)

    async def scan(self, ref: SegmentRef) -> AsyncGenerator[ArchivedJob]:
        """Every job of a segment, by id. Its digest is checked first."""
        for block in await self.blocks(ref):
            for job in await asyncio.to_thread(_about, ref, unpack, block.data):
                yield job

    async def batches(
        self, ref: SegmentRef, *, most: int = 500
    ) -> AsyncGenerator[list[ArchivedJob]]:
        """What `scan` yields, so many at a time."""
        batch: list[ArchivedJob] = []
        async for job in self.scan(ref):
            batch.append(job)
            if len(batch) == most:
                yield batch
                batch = []
        if batch:
            yield batch

    async def verify(self, ref: SegmentRef) -> SegmentIndex:
        """Read all of it. Raises SegmentBroken where it is not what was written."""
        segment = await self._images.get(ref.key)
        return await asyncio.to_thread(_about, ref, _verified, segment)

    async def blocks(self, ref: SegmentRef) -> list[PackedBlock]:
        """Its blocks as they are stored, for a rewrite. The digest is checked."""
        segment = await self._images.get(ref.key)
        index = await asyncio.to_thread(_about, ref, check, segment)
        return [
            PackedBlock(block.first, block.last, block.jobs, segment[part.start : part.stop])
            for block in index.blocks
            for part in [index.part(block)]
        ]

    async def write(self, ref: SegmentRef, blocks: Sequence[PackedBlock]) -> int:
        """Store a segment whole or not at all; its size in bytes. It is durable on return."""
        segment = await asyncio.to_thread(segment_of, blocks)
        await self._images.put(ref.key, segment)
        return len(segment)

    async def delete(self, ref: SegmentRef) -> None:
        """Remove a segment; nothing happens if there is none."""
        await self._images.delete(ref.key)


def _verified(segment: bytes) -> SegmentIndex:
    index = check(segment)
    for block in index.blocks:
        part = index.part(block)
        ids = [job.job_id for job in unpack(segment[part.start : part.stop])]
        if ids != sorted(set(ids)) or (ids[0], ids[-1], len(ids)) != (
            block.first,
            block.last,
            block.jobs,
        ):
            raise SegmentBroken("A block does not hold the jobs that its index says.")
    return index


def _about(ref: SegmentRef, read: Callable[[bytes], T], data: bytes) -> T:
    """Read, and say in an error which segment it is."""
    try:
        return read(data)
    except SegmentBroken as error:
        raise SegmentBroken(f"The segment {ref.key} is broken. {error}") from error
