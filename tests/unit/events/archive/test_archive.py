"""Segments in an image store."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from events.archive.archive import Archive, SegmentRef, segment_ref
from events.archive.segment import ArchivedJob, pack
from events.errors import SegmentBroken
from events.ids import new_id
from events.log import StoredEvent
from storage.images import ImageNotFound, ImageStore

REF = SegmentRef(date(2026, 3, 1), 7, new_id())


class ReadingStore(ImageStore):
    """Records how many bytes each read takes."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[int] = []

    async def get(self, key: str, part: range | None = None) -> bytes:
        data = await super().get(key, part)
        self.reads.append(len(data))
        return data


@pytest.fixture
def store(tmp_path: Path) -> ReadingStore:
    return ReadingStore(tmp_path.as_uri())


def some_jobs(count: int) -> list[ArchivedJob]:
    ids = sorted(new_id() for _ in range(count))
    return [
        ArchivedJob(job_id, (StoredEvent(n, new_id().encode() * 9),))
        for n, job_id in enumerate(ids)
    ]


async def test_a_job_is_read_by_the_index_and_one_block(store: ReadingStore) -> None:
    archive, jobs = Archive(store), some_jobs(20_000)
    size = await archive.write(REF, list(pack(jobs)))
    wanted = jobs[12_345]
    assert await archive.read(REF, wanted.job_id) == wanted
    assert len(store.reads) == 2
    assert sum(store.reads) < size / 5
    assert await archive.read(REF, new_id()) is None


async def test_a_long_index_is_read_whole(
    store: ReadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.archive.archive._HEAD_BYTES", 16)
    archive, jobs = Archive(store), some_jobs(3)
    await archive.write(REF, list(pack(jobs)))
    assert await archive.read(REF, jobs[1].job_id) == jobs[1]


async def test_all_jobs_are_scanned_by_id(store: ReadingStore) -> None:
    archive, jobs = Archive(store), some_jobs(2000)
    await archive.write(REF, list(pack(jobs)))
    assert [job async for job in archive.scan(REF)] == jobs
    assert (await archive.verify(REF)).jobs == 2000
    assert [ref async for ref in archive.segments()] == [REF]


async def test_a_broken_segment_is_named(store: ReadingStore) -> None:
    archive = Archive(store)
    await archive.write(REF, list(pack(some_jobs(9))))
    whole = await store.get(REF.key)
    await store.put(REF.key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SegmentBroken, match=REF.key):
        await archive.verify(REF)
    await store.put(REF.key, whole[:20])
    with pytest.raises(SegmentBroken, match=REF.key):
        await archive.read(REF, new_id())


async def test_a_segment_that_is_not_there_is_missing(store: ReadingStore) -> None:
    archive = Archive(store)
    with pytest.raises(ImageNotFound):
        await archive.read(REF, new_id())
    await archive.delete(REF)


async def test_other_files_are_no_segments(store: ReadingStore) -> None:
    for key in (
        "archive/notes.txt",
        "archive/2026-13-41/07/0.gz",
        "archive/2026-03-01/07/x.gz.tmp",
        f"{new_id()}/1/0.png",
    ):
        await store.put(key, b"")
    assert [ref async for ref in Archive(store).segments()] == []
    assert segment_ref(REF.key) == REF
