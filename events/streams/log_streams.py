"""The log as one stream or several: whose events each has, and places in all of them together.

A stream of NATS numbers its own messages. A position is the number of an event in the whole log:
with `n` streams, `n` times its number in its stream, and the stream's index. So one number says
where an event stands, those of a job grow, and with one stream it is the stream's own number. How
far somebody has come in the whole log is a place: a position in each stream, since no stream waits
for another. With one stream that is a position, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from events.ids import PARTITIONS, partition_of


@dataclass(frozen=True, slots=True, eq=True)
class Place:
    """What is up to a position in each stream, by the stream's index; two parts at least.

    `position > place` says that an event stands behind it, `position <= place` that it does not. A
    place is behind another one, `a < b`, where something up to `b` stands behind `a`; so each of
    two may be behind the other.
    """

    parts: tuple[int, ...]

    def __ge__(self, other: LogPlace) -> bool:
        if isinstance(other, Place):
            return all(mine >= its for mine, its in zip(self.parts, other.parts, strict=True))
        return self.parts[other % len(self.parts)] >= other

    def __lt__(self, other: LogPlace) -> bool:
        return not self >= other

    def __str__(self) -> str:
        return "-".join(map(str, self.parts))


LogPlace: TypeAlias = int | Place
"""How far somebody has come in the whole log; a number is up to that position in every stream."""

PLACE = r"^[0-9]{1,18}(-[0-9]{1,18}){0,15}$"
"""Pattern of a place as text."""


def parse_place(text: str) -> LogPlace:
    """Raises ValueError where it is none."""
    if not re.fullmatch(PLACE, text):
        raise ValueError("not a place in the log")
    parts = tuple(map(int, text.split("-")))
    return parts[0] if len(parts) == 1 else Place(parts)


def part_of(place: LogPlace, index: int) -> int:
    """The position in the stream of this index."""
    return place if isinstance(place, int) else place.parts[index]


def is_beyond(place: LogPlace, other: LogPlace) -> bool:
    """Whether something up to `place`, or the event at this position, stands behind `other`."""
    if isinstance(place, int) and isinstance(other, int):
        return place > other
    assert isinstance(other, Place)
    return other < place


def like(place: LogPlace, other: LogPlace) -> LogPlace:
    """The same place with as many parts as `other` has. Raises ValueError where it has others."""
    count = 1 if isinstance(other, int) else len(other.parts)
    return LogStreams(count).spread(place)


def moved(place: LogPlace, position: int) -> LogPlace:
    """With the event at `position`, and what its stream has before it."""
    if isinstance(place, int):
        return max(place, position)
    if position <= place:
        return place
    parts = list(place.parts)
    parts[position % len(parts)] = position
    return Place(tuple(parts))


def earliest(place: LogPlace, other: LogPlace) -> LogPlace:
    """What is up to both. Both are of the same streams."""
    if isinstance(place, Place) and isinstance(other, Place):
        return Place(tuple(map(min, place.parts, other.parts)))
    assert isinstance(place, int)
    assert isinstance(other, int)
    return min(place, other)


def most_between(after: LogPlace, upto: LogPlace) -> int:
    """How many events may stand behind the first place and up to the other one."""
    if isinstance(after, Place) and isinstance(upto, Place):
        gaps = (max(b - a, 0) for a, b in zip(after.parts, upto.parts, strict=True))
        return sum(-(-gap // len(after.parts)) for gap in gaps)
    assert isinstance(after, int)
    assert isinstance(upto, int)
    return max(upto - after, 0)


@dataclass(frozen=True, slots=True)
class LogStreams:
    """How many streams the log is; 1, 2, 4, 8 or 16, so that each has as many partitions."""

    count: int = 1

    def of_job(self, job_id: str) -> int:
        """The index of the stream that has the events of a job."""
        return partition_of(job_id) % self.count

    def of_position(self, position: int) -> int:
        return position % self.count

    def at(self, position: int) -> LogStream:
        """Whose message it is."""
        return self.all()[self.of_position(position)]

    def partitions(self, index: int) -> range:
        return range(index, PARTITIONS, self.count)

    def all(self) -> tuple[LogStream, ...]:
        return tuple(LogStream(index, self) for index in range(self.count))

    def bytes_each(self, max_bytes: int) -> int:
        """How large each may become of so many bytes for all; -1 says that there is no limit.

        At least one: NATS takes 0 for no limit.
        """
        return max(1, max_bytes // self.count) if max_bytes >= 0 else -1

    def place(self, parts: Sequence[int]) -> LogPlace:
        """Of a position in each stream."""
        return parts[0] if self.count == 1 else Place(tuple(parts))

    def spread(self, place: LogPlace) -> LogPlace:
        """With a part for each stream. Raises ValueError for one of another number of streams."""
        if isinstance(place, int):
            return self.place([place] * self.count)
        if len(place.parts) != self.count:
            raise ValueError("a place in another number of streams")
        return place


@dataclass(frozen=True, slots=True)
class LogStream:
    """One of the streams, and the positions of its messages."""

    index: int = 0
    streams: LogStreams = LogStreams()

    def position(self, sequence: int) -> int:
        return sequence * self.streams.count + self.index

    def sequence(self, position: int) -> int:
        """0 for 0, which is before the first. A position of a time before is no message's."""
        return max(position // self.streams.count, 1) if position else 0

    def part(self, place: LogPlace) -> int:
        return part_of(place, self.index)

    def last_sequence(self, place: LogPlace) -> int:
        """Of the last message up to there."""
        return max(self.part(place) - self.index, 0) // self.streams.count


ONE_STREAM = LogStreams()
