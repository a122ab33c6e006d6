"""The format of a segment: the events of many jobs, sorted by job, compressed in blocks.

A segment is gzip members one behind another, so that `zcat` shows all of it. The first is the
index, one line of JSON. Each other one is a block of some jobs, and each of those is

    {"job": id, "events": [[sequence, bytes], …], "deliveries": [[sequence, bytes], …]}

on a line of its own, and after it the payloads in this order, each followed by a newline. Reading
one job takes the index and one block, for the index says between which ids a block lies.

gzip: RFC 1952.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from events.errors import SegmentBroken
from events.log import StoredEvent

FORMAT = "darkroom.segment.v1"
BLOCK_BYTES = 128 * 1024
"""A block is closed once it has so much, uncompressed: more would hardly compress better."""

_LEVEL = 6
_GZIP = 31
"""The `wbits` with which zlib reads and writes gzip members."""


@dataclass(frozen=True, slots=True)
class ArchivedJob:
    """What the archive has of one job."""

    job_id: str
    events: tuple[StoredEvent, ...]
    """Of the job, in order."""
    deliveries: tuple[StoredEvent, ...] = ()
    """Of its callback's delivery, in order."""

    def joined(self, other: ArchivedJob) -> ArchivedJob:
        """With what another copy of the same job has; what both have is there once.

        Where they have nothing in common, the other one is the later.
        """
        return ArchivedJob(
            self.job_id,
            _joined(self.events, other.events),
            _joined(self.deliveries, other.deliveries),
        )


def _joined(some: Sequence[StoredEvent], others: Sequence[StoredEvent]) -> tuple[StoredEvent, ...]:
    """By what they say: sequences begin again where a log was lost, or restored from a backup."""
    known = {event.payload for event in some}
    shared = (place for place, event in enumerate(others) if event.payload in known)
    begin = next(shared, 0)
    later = (event for event in others[begin:] if event.payload not in known)
    return (*others[:begin], *some, *later)


@dataclass(frozen=True, slots=True)
class Block:
    """Where a block lies, and the ids of its first and its last job."""

    first: str
    last: str
    start: int
    """Counted from the end of the index."""
    size: int
    jobs: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    blocks: tuple[Block, ...]
    sha256: str
    """Of all blocks, in hex."""
    size: int = 0
    """Of the index itself in the segment, where the blocks begin."""

    @property
    def jobs(self) -> int:
        return sum(block.jobs for block in self.blocks)

    def block_of(self, job_id: str) -> Block | None:
        """The only block that the job may be in."""
        return next((each for each in self.blocks if each.first <= job_id <= each.last), None)

    def part(self, block: Block) -> range:
        """Where the block lies in the segment."""
        start = self.size + block.start
        return range(start, start + block.size)


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """A block as it is stored: a rewrite takes those that do not change as they are."""

    first: str
    last: str
    jobs: int
    data: bytes


def pack(jobs: Iterable[ArchivedJob]) -> Iterator[PackedBlock]:
    """The blocks of `jobs`, which are sorted by id."""
    ids: list[str] = []
    raw = bytearray()
    for job in jobs:
        ids.append(job.job_id)
        raw += _encode(job)
        if len(raw) >= BLOCK_BYTES:
            yield PackedBlock(ids[0], ids[-1], len(ids), _compress(bytes(raw)))
            ids, raw = [], bytearray()
    if ids:
        yield PackedBlock(ids[0], ids[-1], len(ids), _compress(bytes(raw)))


def segment_of(packed: Sequence[PackedBlock]) -> bytes:
    """A whole segment. Raises ValueError where the blocks are not in order."""
    if any(before.last >= after.first for before, after in pairwise(packed)):
        raise ValueError("the jobs of a segment must be sorted by id, each once")
    blocks, start = [], 0
    for each in packed:
        blocks.append(Block(each.first, each.last, start, len(each.data), each.jobs))
        start += len(each.data)
    body = b"".join(each.data for each in packed)
    index = {
        "format": FORMAT,
        "sha256": hashlib.sha256(body).hexdigest(),
        "blocks": [asdict(block) for block in blocks],
    }
    return _compress(json.dumps(index).encode() + b"\n") + body


def read_index(head: bytes) -> SegmentIndex | None:
    """The index at the beginning of a segment; None where `head` does not hold all of it.

    Raises SegmentBroken.
    """
    inflate = zlib.decompressobj(_GZIP)
    try:
        text = inflate.decompress(head)
        if not inflate.eof:
            return None
        index = json.loads(text)
        if index["format"] != FORMAT:
            raise SegmentBroken("It has a format that this version does not know.")
        blocks = tuple(Block(**block) for block in index["blocks"])
        read = SegmentIndex(blocks, index["sha256"])
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise SegmentBroken("Its index cannot be read.") from error
    return replace(read, size=len(head) - len(inflate.unused_data))


def unpack(data: bytes) -> list[ArchivedJob]:
    """The jobs of one block. Raises SegmentBroken: gzip's checksum covers the whole block."""
    try:
        raw = zlib.decompress(data, _GZIP)
        return list(_decode(raw))
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise SegmentBroken("One of its blocks cannot be read.") from error


def check(segment: bytes) -> SegmentIndex:
    """The index of a whole segment that is as it was written. Raises SegmentBroken."""
    index = read_index(segment)
    if index is None:
        raise SegmentBroken("It ends within its index.")
    if hashlib.sha256(segment[index.size :]).hexdigest() != index.sha256:
        raise SegmentBroken("Its blocks do not have the digest that its index says.")
    return index


def _encode(job: ArchivedJob) -> bytes:
    sizes = {
        "job": job.job_id,
        "events": [[each.sequence, len(each.payload)] for each in job.events],
        "deliveries": [[each.sequence, len(each.payload)] for each in job.deliveries],
    }
    payloads = [each.payload for each in (*job.events, *job.deliveries)]
    return b"\n".join((json.dumps(sizes).encode(), *payloads, b""))


def _decode(raw: bytes) -> Iterator[ArchivedJob]:
    at = 0
    while at < len(raw):
        end = raw.index(b"\n", at)
        sizes = json.loads(raw[at:end])
        at = end + 1
        lists: list[tuple[StoredEvent, ...]] = []
        for name in ("events", "deliveries"):
            events = []
            for sequence, size in sizes[name]:
                events.append(StoredEvent(sequence, raw[at : at + size]))
                at += size + 1
            lists.append(tuple(events))
        yield ArchivedJob(sizes["job"], *lists)


def _compress(raw: bytes) -> bytes:
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return deflate.compress(raw) + deflate.flush()
