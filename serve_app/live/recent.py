"""The last events of the log, whoever's they are, so that a stream can go on where it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import merge

from events.streams.log_streams import LogPlace, earliest, moved
from events.types import Erased, Event, Submitted
from serve_app.live.listener import LiveEvent


@dataclass(frozen=True, slots=True)
class Belonging:
    """Whose a job is, and where it runs."""

    owner: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class RecentEvent:
    live: LiveEvent
    """Made once for all who are sent it."""
    belonging: Belonging

    @property
    def event(self) -> Event:
        return self.live.event

    @property
    def position(self) -> int:
        return self.live.position


class RecentEvents:
    """Every event after `floor` and up to `head`, in the order of the log's streams."""

    def __init__(self, *, after: LogPlace, most: int) -> None:
        self.floor = after
        self.head = after
        self.begun_at = after
        """What stands behind it was followed as it came, and is here whatever leaves the log."""
        self._most = most
        self._events: deque[RecentEvent] = deque()

    def add(self, recent: RecentEvent) -> None:
        """Of an erased job nothing else is kept."""
        if isinstance(recent.event.data, Erased):
            self._forget(recent.event.job_id)
        self._events.append(recent)
        self.head = moved(self.head, recent.event.position)
        while len(self._events) > self._most:
            self.floor = moved(self.floor, self._events.popleft().event.position)

    def pass_to(self, position: int) -> None:
        """The log is followed up to there; what it had meanwhile is shown to nobody."""
        self.head = moved(self.head, position)

    def reach_back(self, older: Sequence[RecentEvent], *, floor: LogPlace) -> None:
        """Add what stands after `floor` and before all that is here. May be more than `most`.

        Some of `older` may be here already.
        """
        erased = {each.event.job_id for each in self._events if isinstance(each.event.data, Erased)}
        kept = [
            each
            for each in older
            if each.event.position <= self.floor and each.event.job_id not in erased
        ]
        self._events.extendleft(reversed(kept))
        self.floor = earliest(floor, self.floor)

    def of(
        self, owner: str, *, after: LogPlace, archived: Sequence[RecentEvent] = ()
    ) -> list[RecentEvent]:
        """Those of an owner after a place, with `archived` among them."""
        found = {each.event.position: each for each in archived}
        for each in self._events:
            if each.event.position > after and each.belonging.owner == owner:
                found[each.event.position] = each
        ordered = [found[position] for position in sorted(found)]
        return ordered if isinstance(after, int) else _by_time(ordered, len(after.parts))

    def _forget(self, job_id: str) -> None:
        kept = (each for each in self._events if each.event.job_id != job_id)
        self._events = deque(kept)


def _by_time(events: Sequence[RecentEvent], streams: int) -> list[RecentEvent]:
    """Those of one stream of the log stay in its order."""
    parts = [[each for each in events if each.position % streams == at] for at in range(streams)]
    return list(merge(*parts, key=lambda each: each.event.time))


def without_request(event: Event) -> Event:
    """Requests may be large, and no stream shows them."""
    if not isinstance(event.data, Submitted):
        return event
    return replace(event, data=event.data.model_copy(update={"request": {}, "input_files": None}))
