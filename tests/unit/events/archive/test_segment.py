"""Segments: what was written is read again byte for byte, and nothing else passes for it."""

from __future__ import annotations

import gzip

import pytest

from events.archive.segment import (
    ArchivedJob,
    check,
    pack,
    read_index,
    segment_of,
    unpack,
)
from events.errors import SegmentBroken
from events.ids import new_id
from events.log import StoredEvent


def job(job_id: str, *, payload_bytes: int = 300) -> ArchivedJob:
    """With payloads that hold newlines, no UTF-8 and nothing at all."""
    events = (StoredEvent(7, b"{}\n\n\xff\x00"), StoredEvent(9, b"x" * payload_bytes))
    return ArchivedJob(job_id, events, (StoredEvent(3, b""), StoredEvent(4, b"\n")))


def jobs(count: int, **sizes: int) -> list[ArchivedJob]:
    return [job(job_id, **sizes) for job_id in sorted(new_id() for _ in range(count))]


def test_what_was_packed_is_read_again_byte_for_byte() -> None:
    written = jobs(2000)
    segment = segment_of(list(pack(written)))
    index = check(segment)
    parts = [index.part(block) for block in index.blocks]
    assert len(parts) > 1
    assert [job for part in parts for job in unpack(segment[part.start : part.stop])] == written
    assert index.jobs == 2000


def test_the_index_says_in_which_block_a_job_is() -> None:
    written = jobs(2000)
    segment = segment_of(list(pack(written)))
    index = check(segment)
    for wanted in written[::97]:
        block = index.block_of(wanted.job_id)
        assert block is not None
        part = index.part(block)
        assert wanted in unpack(segment[part.start : part.stop])
    assert index.block_of("00000000-0000-7000-8000-000000000000") is None


def test_the_beginning_of_an_index_is_no_index() -> None:
    segment = segment_of(list(pack(jobs(9))))
    assert read_index(segment[:40]) is None


def test_the_same_jobs_make_the_same_segment() -> None:
    written = jobs(9)
    assert segment_of(list(pack(written))) == segment_of(list(pack(written)))


def test_gzip_alone_shows_a_segment() -> None:
    written = jobs(3)
    text = gzip.decompress(segment_of(list(pack(written))))
    assert all(job.job_id.encode() in text for job in written)


@pytest.mark.parametrize("at", [1, 200, -10])
def test_a_changed_byte_is_found(at: int) -> None:
    segment = bytearray(segment_of(list(pack(jobs(50)))))
    segment[at] ^= 1
    with pytest.raises(SegmentBroken):
        check(bytes(segment))


def test_a_segment_that_was_cut_off_is_broken() -> None:
    segment = segment_of(list(pack(jobs(50))))
    for end in (len(segment) - 1, 40):
        with pytest.raises(SegmentBroken):
            check(segment[:end])


def test_blocks_out_of_order_make_no_segment() -> None:
    first, second = (list(pack([each])) for each in jobs(2))
    with pytest.raises(ValueError, match="sorted"):
        segment_of([*second, *first])
    with pytest.raises(ValueError, match="sorted"):
        segment_of([*first, *first])


def test_two_copies_of_a_job_make_one() -> None:
    one = ArchivedJob("a", (StoredEvent(1, b"1"), StoredEvent(3, b"3")))
    other = ArchivedJob("a", (StoredEvent(3, b"3"), StoredEvent(5, b"5")), (StoredEvent(1, b"d"),))
    whole = one.joined(other)
    assert [event.sequence for event in whole.events] == [1, 3, 5]
    assert whole == other.joined(one)


def test_copies_of_a_job_are_joined_in_the_order_of_its_events() -> None:
    """The log was lost meanwhile, so its sequences began again."""
    first, second = StoredEvent(8, b"first"), StoredEvent(9, b"second")
    third, fourth = StoredEvent(2, b"third"), StoredEvent(9, b"fourth")
    archived, later = ArchivedJob("a", (first, second)), ArchivedJob("a", (second, third, fourth))
    both = ArchivedJob("a", (first, second, third, fourth))
    assert archived.joined(later) == both
    assert both.joined(archived) == both.joined(later) == both
