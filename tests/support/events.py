"""Events of jobs, and histories as a log returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from events.ids import new_id
from events.job import Job, fold
from events.log import Appended, EventLog, utc_now
from events.types import Erased, Event, EventData, Flavour, ImageStored, Submitted

JOB_ID = "0199aaaa-0000-7000-8000-000000000001"
START = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
MORNING = START.replace(microsecond=123456)
"""A time with microseconds, which a database must keep."""
LATER = datetime(2100, 1, 1, tzinfo=UTC)
"""A deadline that no test reaches."""


def submitted(**changes: Any) -> Submitted:
    values: dict[str, Any] = {
        "flavour": Flavour.DIFFUSION,
        "owner": "alice",
        "key_id": "k1",
        "endpoint": "default",
        "lane": 3,
        "request": {"prompt": "a red circle", "seed": 7},
        "fingerprint": "f",
        "images": 1,
    }
    return Submitted(**(values | changes))


def image(index: int, *, attempt: int = 1, **changes: Any) -> ImageStored:
    values: dict[str, Any] = {
        "index": index,
        "attempt": attempt,
        "key": f"job/{attempt}/{index}",
        "size_bytes": 2**33,
        "digest": "sha256:00",
        "width": 512,
        "height": 768,
        "seed": 7 + index,
    }
    return ImageStored(**(values | changes))


def erased(at: datetime = MORNING) -> Erased:
    """The erasure of a job of `submitted` that was submitted then."""
    return Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=at)


def new_event(
    job_id: str | None = None, version: int = 1, data: EventData | None = None, **changes: Any
) -> Event:
    """An event that is not stored yet, by default the first one of a new job."""
    values: dict[str, Any] = {
        "id": new_id(),
        "job_id": job_id or new_id(),
        "version": version,
        "time": utc_now(),
        "data": data or submitted(),
    }
    return Event(**(values | changes))


async def appended(log: EventLog, event: Event, expected: int = 0) -> Event:
    """Store the event behind the job's event at this position, and return it as it was stored."""
    outcome = await log.append(event, expected=expected)
    assert isinstance(outcome, Appended)
    return outcome.event


async def job_in(log: EventLog, job_id: str) -> Job:
    """The job as its events in the log tell it; it must have some."""
    job = fold(await log.read(job_id))
    assert job is not None
    return job


def history_of(*events: EventData) -> list[Event]:
    """Return the events of job `JOB_ID`: versions from 1, one second apart from `START` on.

    The positions leave room for other jobs.
    """
    return [
        Event(
            id=f"event-{version}",
            job_id=JOB_ID,
            version=version,
            time=START + timedelta(seconds=version - 1),
            data=data,
            position=version * 10,
        )
        for version, data in enumerate(events, start=1)
    ]


def folded(events: Iterable[EventData]) -> Job:
    job = fold(history_of(*events))
    assert job is not None
    return job


class History:
    """The events of many jobs: positions rise over all of them, versions within each job."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._versions: Counter[str] = Counter()

    def add(self, job_id: str, *events: EventData, at: datetime = MORNING) -> list[Event]:
        new: list[Event] = []
        for data in events:
            self._versions[job_id] += 1
            new.append(
                new_event(
                    job_id,
                    self._versions[job_id],
                    data,
                    time=at,
                    position=len(self.events) + len(new) + 1,
                )
            )
        self.events += new
        return new

    @property
    def end(self) -> int:
        """The position of the last event."""
        return len(self.events)
