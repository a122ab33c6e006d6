"""A batch of events, folded over the rows of their jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from events.job import Job, fold
from events.store.blocked import Stop
from events.store.job_rows import image_rows
from events.types import Broken, Erased, Event, Unknown


@dataclass(frozen=True, slots=True)
class Step:
    """One event, and what it made of its job."""

    event: Event
    before: Job | None
    after: Job


class Batch:
    """What the rows become, one event after the other."""

    def __init__(self, jobs: Mapping[str, Job], stops: Mapping[str, Stop], *, now: datetime):
        """`jobs`, `stops`: the rows before the batch."""
        self._rows = jobs
        self._stop_rows = stops
        self._jobs = dict(jobs)
        self._stops = dict(stops)
        self._now = now
        self.steps: list[Step] = []
        """The events that were folded: not those that were left out, or known before."""

    def add(self, event: Event) -> None:
        job, stop = self._jobs.get(event.job_id), self._stops.get(event.job_id)
        if isinstance(event.data, Erased):
            self._stops.pop(event.job_id, None)  # it needs nothing of what stands before it
        elif stop is not None:
            self._stops[event.job_id] = replace(stop, seen=max(stop.seen, event.position))
            return
        elif why := _why_left_out(event, job):
            self._stops[event.job_id] = stop_at(event, why, now=self._now)
            return
        if (folded := fold([event], job)) is not None and folded is not job:
            self._jobs[event.job_id] = folded
            self.steps.append(Step(event, job, folded))

    @property
    def jobs(self) -> list[Job]:
        """Those whose rows change."""
        return [job for job in self._jobs.values() if job is not self._rows.get(job.id)]

    @property
    def stops(self) -> list[Stop]:
        """Those whose rows change."""
        return [stop for id, stop in self._stops.items() if stop is not self._stop_rows.get(id)]

    @property
    def new_stops(self) -> list[Stop]:
        return [stop for id, stop in self._stops.items() if id not in self._stop_rows]

    @property
    def ended_stops(self) -> set[str]:
        """Jobs that are stopped at no longer."""
        return self._stop_rows.keys() - self._stops.keys()

    def image_rows(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        return image_rows(events, self._jobs)


def stop_at(event: Event, why: str, *, now: datetime) -> Stop:
    return Stop(event.job_id, event.position, event.position, why=why, since=now)


def _why_left_out(event: Event, job: Job | None) -> str | None:
    """None where it is folded."""
    if job is not None and (job.erased or event.position <= job.position):
        return None
    match event.data:
        case Unknown(original_type=type_name):
            return f"an event of a later version ({type_name})"
        case Broken():
            return "not an event"
    next_version = job.version + 1 if job else 1
    return f"event {next_version} has not come" if event.version > next_version else None
