"""Ids of a job's trace. Every process derives the same ones from the job, so none are handed on."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from events.job import Job

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceIds:
    """Of one job (https://www.w3.org/TR/trace-context)."""

    job_id: str
    trace: str
    """32 hexadecimal digits: of the caller's trace, or else the job's own id."""
    parent: str | None
    """16 hexadecimal digits: the caller's span."""
    is_sampled: bool
    """Whether the caller wants it recorded; without a word of the caller it is."""

    @classmethod
    def of(cls, job: Job) -> TraceIds:
        return cls.parse(job.id, job.traceparent)

    @classmethod
    def parse(cls, job_id: str, traceparent: str | None) -> TraceIds:
        """Of the job of this id, whose caller sent this header or none."""
        found = _TRACEPARENT.fullmatch(traceparent or "")
        if found is None:
            return cls(job_id, job_id.replace("-", ""), None, is_sampled=True)
        trace, parent, flags = found.groups()
        return cls(job_id, trace, parent, is_sampled=bool(int(flags, 16) & _SAMPLED))

    def span(self, *name: str | int) -> str:
        """The id of a span of this job, 16 hexadecimal digits: the same each time."""
        text = "/".join(map(str, (self.job_id, *name)))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def attempt_link(self, attempt: int) -> str:
        """`<trace>-<span>` of an attempt, by which others are linked to it; empty where its trace
        is not recorded.
        """
        return f"{self.trace}-{self.attempt(attempt)}" if self.is_sampled else ""

    def attempt(self, number: int) -> str:
        """The span of an attempt."""
        return self.span("attempt", number)

    @property
    def accept(self) -> str:
        """The span of the request: all others of the job are below it."""
        return self.span("accept")

    @property
    def job(self) -> str:
        """The span from the submission to the end."""
        return self.span("job")

    @property
    def job_link(self) -> str:
        """`<trace>-<span>` of the job."""
        return f"{self.trace}-{self.job}"
