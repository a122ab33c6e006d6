"""What two places say differently about one thing. Pure: who looked hands over what was found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from events.job import Job, fold
from events.log import StoredEvent
from events.store.maintenance.contents import JobRow
from events.streams.log_streams import LogPlace
from events.types import Broken, End, Erased, Event, Submitted, Unknown
from events.wire.cloud_events import decode_stored


class Kind(StrEnum):
    """Of a disagreement, as `darkroom verify` names it."""

    UNREADABLE_EVENT = "unreadable_event"
    NO_SUBMISSION = "no_submission"
    VERSION_GAP = "version_gap"
    MORE_THAN_ONE_END = "more_than_one_end"
    OPEN_WITHOUT_ENTRY = "open_without_entry"
    CALLBACK_LOST = "callback_lost"
    ROW_DIFFERS = "row_differs"
    ROW_WITHOUT_EVENTS = "row_without_events"
    EVENTS_WITHOUT_ROW = "events_without_row"
    PROJECTION_AHEAD = "projection_ahead"
    PROJECTION_STOPPED = "projection_stopped"
    FILE_MISSING = "file_missing"
    FILE_DIFFERS = "file_differs"
    FILE_OF_NOTHING = "file_of_nothing"
    DELIVERY_OF_UNKNOWN_JOB = "delivery_of_unknown_job"
    ENTRY_OF_UNKNOWN_JOB = "entry_of_unknown_job"
    SEGMENT_DAMAGED = "segment_damaged"
    SEGMENT_MISSING = "segment_missing"
    ARCHIVED_TWICE = "archived_twice"
    ENTRY_OF_ENDED_JOB = "entry_of_ended_job"


@dataclass(frozen=True, slots=True)
class Disagreement:
    kind: Kind
    what: str
    """A sentence for an operator. It shows nothing that a caller wrote."""
    job_id: str | None = None
    file: str | None = None
    """Its key in the image store."""


Check = Callable[[Sequence[str]], Awaitable[list[Disagreement]]]
"""What disagrees about some jobs or files. May be asked again: it changes nothing."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What a log holds of one job."""

    events: tuple[Event, ...]
    disagreements: tuple[Disagreement, ...]
    """With any of these, nothing can be said of the job's state."""

    @property
    def job(self) -> Job | None:
        return None if self.disagreements else fold(self.events)


def job_history(job_id: str, stored: Sequence[StoredEvent]) -> JobHistory:
    events, wrong = decoded(job_id, stored, place="log")
    if not wrong and events:
        wrong = _in_history(job_id, events)
    return JobHistory(tuple(events), tuple(wrong))


def decoded(
    job_id: str, stored: Sequence[StoredEvent], *, place: str
) -> tuple[list[Event], list[Disagreement]]:
    """The events of one subject, and those of its messages that this version cannot read."""
    events: list[Event] = []
    wrong: list[Disagreement] = []
    for each in stored:
        event = decode_stored(each.payload, job_id=job_id, position=each.sequence)
        match event.data:
            case Broken():
                what = "not an event"
            case Unknown():
                what = "an event of a later version"
            case _ if event.job_id != job_id:
                what = f"an event of job {event.job_id}"
            case _:
                events.append(event)
                continue
        text = f"Message {each.sequence} of the {place} is {what}."
        wrong.append(Disagreement(Kind.UNREADABLE_EVENT, text, job_id))
    return events, wrong


def gap(job_id: str, events: Sequence[Event], *, place: str) -> list[Disagreement]:
    """Versions have no gap, and begin at 1; before an `Erased` the older ones may be gone."""
    versions = [event.version for event in events]
    is_erased = bool(events) and isinstance(events[-1].data, Erased)
    first = versions[0] if is_erased else 1
    if versions == list(range(first, first + len(versions))):
        return []
    text = f"Its versions in the {place} are {_shown(versions)}."
    return [Disagreement(Kind.VERSION_GAP, text, job_id)]


def _in_history(job_id: str, events: Sequence[Event]) -> list[Disagreement]:
    if wrong := gap(job_id, events, place="log"):
        return wrong
    if not isinstance(events[0].data, Submitted) and not isinstance(events[-1].data, Erased):
        text = f"Its first event is {events[0].data.type_name}."
        return [Disagreement(Kind.NO_SUBMISSION, text, job_id)]
    ends = [event.version for event in events if isinstance(event.data, get_args(End))]
    if len(ends) > 1:
        text = f"It ends at versions {_shown(ends)}."
        return [Disagreement(Kind.MORE_THAN_ONE_END, text, job_id)]
    return []


def in_row(
    job_id: str, row: JobRow | None, events: Sequence[Event], *, checkpoint: LogPlace
) -> list[Disagreement]:
    """What the row says otherwise than the events; `events` are not empty, and were read after
    `row`, which was read after `checkpoint`.

    Events that are not projected yet are no disagreement.
    """
    if row is None:
        if events[0].position > checkpoint:
            return []
        text = f"The log has {len(events)} events of it, the read model has no row."
        return [Disagreement(Kind.EVENTS_WITHOUT_ROW, text, job_id)]
    last = events[-1]
    projected = [event for event in events if event.position <= checkpoint]
    known = [event for event in events if event.version <= row.version]
    if row.version > last.version or (projected and row.version < projected[-1].version):
        text = f"Its row is at version {row.version}, its events end at version {last.version}."
        return [Disagreement(Kind.ROW_DIFFERS, text, job_id)]
    job = fold(known)
    if job is not None and (columns := row.differences(job, known)):
        text = f"Its row differs from its events in {', '.join(columns)}."
        return [Disagreement(Kind.ROW_DIFFERS, text, job_id)]
    return []


def _shown(numbers: Sequence[int], *, most: int = 20) -> str:
    more = ", …" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more
