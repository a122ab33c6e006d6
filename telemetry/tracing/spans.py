"""The spans of a job, made from its events once it has ended. Pure.

A job has none where its caller's `traceparent` says that the trace is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from events.delivery_policy import SendResult
from events.job import Job
from events.job_cost import Timing
from events.types import (
    AttemptFailed,
    Completed,
    DispatchFailed,
    Event,
    Failed,
    ImageStored,
    Started,
)
from telemetry.tracing.ids import TraceIds

Value: TypeAlias = str | int | float | bool

_NOTHING: Mapping[str, Value] = {}


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened within a span."""

    name: str
    at: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a job's trace; see `TraceIds` for its ids."""

    trace: str
    id: str
    parent: str | None
    name: str
    begin: datetime
    end: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    links: tuple[str, ...] = ()
    """`<trace>-<span>` of others that it has to do with."""
    is_error: bool = False


def job_spans(job: Job, history: Sequence[Event], *, projected_at: datetime) -> list[Span]:
    """Of a job that has ended: itself, its waits, attempts and their stages, its projection."""
    ids = TraceIds.of(job)
    if not ids.is_sampled:
        return []
    ended_at = job.ended_at or projected_at
    story = _Story(ids, since=job.submitted_at)
    for event in history:
        story.add(event)
    story.end(job, ended_at)
    story.span("project", at=(ended_at, projected_at))
    retry_of = job.submitted.retry_of
    whole = Span(
        trace=ids.trace,
        id=ids.job,
        parent=ids.accept if retry_of is None else ids.parent,  # nobody sent a request for that
        name="job",
        begin=job.submitted_at,
        end=ended_at,
        attributes=_about(job),
        moments=tuple(story.moments),
        links=() if retry_of is None else (TraceIds.parse(retry_of, job.traceparent).job_link,),
        is_error=isinstance(job.end, Failed),
    )
    return [whole, *story.spans]


def accept_spans(job: Job, *, began: datetime, ended: datetime) -> list[Span]:
    """Of the request that submitted the job, and of its append."""
    ids = TraceIds.of(job)
    if not ids.is_sampled:
        return []
    accept = Span(ids.trace, ids.accept, ids.parent, "accept", began, ended, _about(job))
    append = ids.span("append")
    return [accept, Span(ids.trace, append, ids.accept, "append", job.submitted_at, ended)]


def callback_spans(job: Job, result: SendResult, *, ended: datetime) -> list[Span]:
    """Of one try."""
    ids = TraceIds.of(job)
    if not ids.is_sampled:
        return []
    attributes: dict[str, Value] = {"http.request.method": "POST"}
    if result.status is not None:
        attributes["http.response.status_code"] = result.status
    began = ended - timedelta(seconds=result.latency_s)
    span = Span(
        ids.trace,
        ids.span("callback", ended.isoformat()),
        ids.job,
        "callback",
        began,
        ended,
        attributes,
        is_error=not result.is_taken,
    )
    return [span]


class _Story:
    """What the events say, one after the other."""

    def __init__(self, ids: TraceIds, *, since: datetime) -> None:
        self.spans: list[Span] = []
        self.moments: list[Moment] = []
        self._ids = ids
        self._waits_since: datetime | None = since
        self._attempt: tuple[Started, datetime] | None = None
        self._stored: list[Moment] = []

    def add(self, event: Event) -> None:
        match event.data:
            case Started() as started:
                given_at = min(started.given_at or event.time, event.time)  # clocks may differ
                self._close_attempt(given_at, outcome="lost")
                self._close_wait(given_at)
                if started.given_at is not None:
                    self.span("dispatch", at=(given_at, event.time))
                self._attempt, self._stored = (started, event.time), []
            case ImageStored(index=index, size_bytes=size_bytes):
                stored: dict[str, Value] = {"darkroom.index": index, "darkroom.bytes": size_bytes}
                self._stored.append(Moment("image stored", event.time, stored))
            case AttemptFailed(blame=blame):
                self._close_attempt(event.time, outcome="job" if blame is None else blame.value)
                self._waits_since = event.time
            case DispatchFailed():
                self.moments.append(Moment("dispatch failed", event.time))

    def end(self, job: Job, at: datetime) -> None:
        self._close_wait(at)
        end, links = job.end, tuple[str, ...]()
        if isinstance(end, Completed):
            links = end.beside or ()
            if self._attempt is not None and end.timing is not None:
                self._add_stages(end.timing, *self._attempt)
        outcome = None if isinstance(end, Completed) else _status(job)
        self._close_attempt(at, outcome=outcome, links=links)
        self.moments.append(Moment("end", at, {"darkroom.status": _status(job)}))

    def span(
        self,
        name: str,
        *,
        at: tuple[datetime, datetime],
        parent: str | None = None,
        attributes: Mapping[str, Value] = _NOTHING,
    ) -> None:
        """`at`: begin and end. `parent`: below which it is; None: the job."""
        begin, parent = at[0], parent or self._ids.job
        id = self._ids.span(name, parent, begin.isoformat())
        self.spans.append(Span(self._ids.trace, id, parent, name, begin, max(at), attributes))

    def _close_wait(self, at: datetime) -> None:
        if self._waits_since is not None:
            self.span("queue", at=(self._waits_since, at))
            self._waits_since = None

    def _close_attempt(
        self, at: datetime, *, outcome: str | None, links: tuple[str, ...] = ()
    ) -> None:
        """`outcome`: why it failed; None where it completed the job."""
        if self._attempt is None:
            return
        (started, began), self._attempt = self._attempt, None
        attributes: dict[str, Value] = {
            "darkroom.attempt": started.attempt,
            "darkroom.exclusive": bool(started.exclusive),
        }
        if outcome is not None:
            attributes["darkroom.outcome"] = outcome
        self.spans.append(
            Span(
                self._ids.trace,
                self._ids.attempt(started.attempt),
                self._ids.job,
                "attempt",
                began,
                max(began, at),
                attributes,
                moments=tuple(self._stored),
                links=links,
                is_error=outcome is not None and outcome != "cancelled",
            )
        )

    def _add_stages(self, timing: Timing, started: Started, began: datetime) -> None:
        """End to end: their durations are known, and not how they interleave."""
        parent = self._ids.attempt(started.attempt)
        for stage, seconds in timing.stage_s.items():
            attributes: dict[str, Value] = {}
            if stage == "denoise" and timing.rows_per_call is not None:
                attributes["darkroom.rows_per_call"] = timing.rows_per_call
            if stage == "denoise" and timing.steps is not None:
                attributes["darkroom.steps"] = timing.steps
            until = began + timedelta(seconds=seconds)
            self.span(stage, at=(began, until), parent=parent, attributes=attributes)
            began = until


def _status(job: Job) -> str:
    return type(job.end).__name__.lower()


def _about(job: Job) -> dict[str, Value]:
    """No owner, no prompt."""
    about: dict[str, Value] = {
        "darkroom.job_id": job.id,
        "darkroom.endpoint": job.submitted.endpoint,
        "darkroom.flavour": job.submitted.flavour.value,
    }
    if job.submitted.cost is not None:
        about["darkroom.cost"] = job.submitted.cost.work
    if job.end is not None:
        about["darkroom.status"] = _status(job)
    if isinstance(job.end, Failed) and job.end.code is not None:
        about["darkroom.code"] = job.end.code
    return about
