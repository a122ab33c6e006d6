"""Builds the spans of a job from its events after its end. The functions have no side effects.

A job has no spans if the `traceparent` of its caller marks the trace as not recorded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from events.delivery import SendResult
from events.job import Job
from events.types import (
    AttemptFailed,
    Completed,
    DispatchFailed,
    Event,
    Failed,
    ImageStored,
    Started,
    Timing,
)

Value: TypeAlias = str | int | float | bool

_NOTHING: Mapping[str, Value] = {}


@dataclass(frozen=True, slots=True)
class Moment:
    """An event within a span."""

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
    """`<trace>-<span>` of each linked span."""
    is_error: bool = False


def job_spans(job: Job, history: Sequence[Event], *, projected_at: datetime) -> list[Span]:
    """Return the spans of an ended job: job, waits, dispatches, attempts, stages and projection."""
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
        # A resubmitted job has no request span.
        parent=ids.accept if retry_of is None else ids.parent,
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
    """Return the spans of the request that submitted the job, and of the append of `Submitted`."""
    ids = TraceIds.of(job)
    if not ids.is_sampled:
        return []
    accept = Span(ids.trace, ids.accept, ids.parent, "accept", began, ended, _about(job))
    append = ids.span("append")
    return [accept, Span(ids.trace, append, ids.accept, "append", job.submitted_at, ended)]


def callback_spans(job: Job, result: SendResult, *, ended: datetime) -> list[Span]:
    """Return the span of one attempt of a callback."""
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
        is_error=not result.is_accepted,
    )
    return [span]


class _Story:
    """Collects spans from the events of a job in order."""

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
                # `given_at` must not be later than the event, although the clocks of the machines
                # may differ.
                given_at = min(started.given_at or event.time, event.time)
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
        """Add a span. `at` is the start and the end of the span.

        `parent` is the id of the parent span; None means the span of the job.
        """
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
        """Add the span of the attempt.

        `outcome` is the reason why the attempt failed; None if the attempt completed the job.
        """
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
        """Add the stages one after the other. Their durations are known, but not their times."""
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
    """Return the attributes of a job, without its owner and its prompt."""
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


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceIds:
    """The ids in the trace of one job (https://www.w3.org/TR/trace-context)."""

    job_id: str
    trace: str
    """The caller's trace id, or else the id of the job; 32 hexadecimal digits."""
    parent: str | None
    """The id of the caller's span, 16 hexadecimal digits; None without a `traceparent`."""
    is_sampled: bool
    """Whether the trace is recorded. The caller's `traceparent` decides this, if there is one."""

    @classmethod
    def of(cls, job: Job) -> TraceIds:
        return cls.parse(job.id, job.traceparent)

    @classmethod
    def parse(cls, job_id: str, traceparent: str | None) -> TraceIds:
        """Return the ids for a job. `traceparent` is the header of its caller, if any."""
        found = _TRACEPARENT.fullmatch(traceparent or "")
        if found is None:
            return cls(job_id, job_id.replace("-", ""), None, is_sampled=True)
        trace, parent, flags = found.groups()
        return cls(job_id, trace, parent, is_sampled=bool(int(flags, 16) & _SAMPLED))

    def span(self, *name: str | int) -> str:
        """Return the span id for this name, always the same one: 16 hexadecimal digits."""
        text = "/".join(map(str, (self.job_id, *name)))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def attempt_link(self, attempt: int) -> str:
        """Return `<trace>-<span>` of an attempt, or an empty text if the trace is not recorded."""
        return f"{self.trace}-{self.attempt(attempt)}" if self.is_sampled else ""

    def attempt(self, number: int) -> str:
        return self.span("attempt", number)

    @property
    def accept(self) -> str:
        """The span id of the request, which is the parent of the job's span."""
        return self.span("accept")

    @property
    def job(self) -> str:
        """The id of the job's span, from its submission to its end."""
        return self.span("job")

    @property
    def job_link(self) -> str:
        """`<trace>-<span>` of the job's span."""
        return f"{self.trace}-{self.job}"
