"""Metrics of the projection: the events of jobs, and the sizes of the log and the queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

from events.job import Job
from events.log import StreamState, utc_now
from events.store.read_model import FoldedEvent, ReadModel
from events.types import (
    AttemptFailed,
    Blame,
    Completed,
    DeadLetter,
    DispatchFailed,
    End,
    Failed,
    Flavour,
    ImageStored,
    Started,
    Submitted,
    Timing,
)
from telemetry.exposition import MOST_ENDPOINTS, EndpointLabels, gauge, gauge_by

_WAIT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_WORK_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
_BLAMED_ON_THE_JOB = "job"


class _Counters:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"darkroom_{name}", text, ("endpoint", *labels), registry=registry)

        self.accepted = counter("jobs_accepted", "Jobs accepted.", "flavour")
        self.accepted_work = counter("jobs_accepted_megapixel_steps", "Cost of the accepted jobs.")
        self.ended = counter("jobs_ended", "Jobs ended.", "flavour", "status")
        self.completed_work = counter(
            "jobs_completed_megapixel_steps", "Cost of the completed jobs."
        )
        self.dead_letters = counter(
            "jobs_dead_letters", "Failed jobs that became dead letters.", "reason"
        )
        self.images = counter("images_stored", "Images and latents stored.")
        self.image_bytes = counter("images_stored_bytes", "Bytes of images and latents stored.")
        self.attempts = counter("attempts_started", "Attempts that began.")
        self.attempt_failures = counter(
            "attempts_failed",
            "Attempts that failed, by cause: the job itself (job), a failure of the engine or "
            "device while it worked for the job and perhaps for others (suspect), or a failure "
            "while the device did not work for the job (bystander).",
            "cause",
        )
        self.leases_lost = counter(
            "leases_lost", "Attempts that ended without an event, so their leases expired."
        )
        self.dispatch_failures = counter(
            "dispatches_failed", "Jobs that were given to a job actor, but no attempt began."
        )


class _Histograms:
    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(
            name: str, text: str, *labels: str, buckets: tuple[float, ...] = _WAIT_BUCKETS_S
        ) -> Histogram:
            labels = ("endpoint", *labels)
            return Histogram(f"darkroom_{name}", text, labels, buckets=buckets, registry=registry)

        self.queue_s = histogram(
            "job_queue_seconds", "Time from the submission of jobs to their first attempt."
        )
        self.duration_s = histogram(
            "job_duration_seconds", "Time from the submission of jobs to their end.", "status"
        )
        self.stage_s = histogram(
            "job_stage_seconds",
            "Time of completed jobs in each stage, including turns of other jobs.",
            "stage",
            buckets=_WORK_BUCKETS_S,
        )
        self.rows = histogram(
            "job_rows_per_call",
            "Rows in a denoising call of completed jobs, including rows of other jobs.",
            buckets=_ROW_BUCKETS,
        )


class JobMetrics:
    """Counts the events of jobs when the projection folds them.

    One process folds each event once, so it counts each event once. Events that the projection
    leaves out (`events.store.read_model`) are not counted.
    """

    def __init__(
        self, registry: CollectorRegistry, *, most_endpoints: int = MOST_ENDPOINTS
    ) -> None:
        """`most_endpoints` is the number of endpoints with their own label."""
        self._endpoints = EndpointLabels(most_endpoints, on_new=self._begin)
        self._count = _Counters(registry)
        self._times = _Histograms(registry)

    def _begin(self, endpoint: str) -> None:
        """Start series at 0. Prometheus would see no increase in a series that starts at 1."""
        count = self._count
        for flavour, end in product(Flavour, get_args(End)):
            count.ended.labels(endpoint, flavour, _status(end))
        for cause in (_BLAMED_ON_THE_JOB, *Blame):
            count.attempt_failures.labels(endpoint, cause)
        for reason in DeadLetter:
            count.dead_letters.labels(endpoint, reason)
        for counter in (count.attempts, count.leases_lost, count.dispatch_failures):
            counter.labels(endpoint)

    def note(self, folded: Sequence[FoldedEvent]) -> None:
        """Count the events. Events after a job's end are not counted."""
        for each in folded:
            if each.before is None or each.before.end is None:
                self._note(each)

    def _note(self, folded: FoldedEvent) -> None:
        before, after, count = folded.before, folded.after, self._count
        endpoint = self._endpoints.of(after.submitted.endpoint)
        match folded.event.data:
            case Submitted(flavour=flavour, cost=cost):
                count.accepted.labels(endpoint, flavour).inc()
                count.accepted_work.labels(endpoint).inc(cost.work if cost else 0)
            case Started():
                self._note_attempt(endpoint, before, after)
            case ImageStored(files=files):
                count.images.labels(endpoint).inc()
                count.image_bytes.labels(endpoint).inc(sum(file.size_bytes for file in files))
            case AttemptFailed(blame=blame):
                cause = _BLAMED_ON_THE_JOB if blame is None else blame
                count.attempt_failures.labels(endpoint, cause).inc()
            case DispatchFailed():
                count.dispatch_failures.labels(endpoint).inc()
        if before is not None and after.end is not None:
            self._note_end(endpoint, after, after.end)

    def _note_attempt(self, endpoint: str, before: Job | None, job: Job) -> None:
        self._count.attempts.labels(endpoint).inc()
        if before is not None and before.has_running_attempt:
            self._count.leases_lost.labels(endpoint).inc()
        if before is not None and before.started_at is None:
            self._times.queue_s.labels(endpoint).observe(_seconds(job, job.started_at))

    def _note_end(self, endpoint: str, job: Job, end: End) -> None:
        status, cost = _status(type(end)), job.submitted.cost
        self._count.ended.labels(endpoint, job.submitted.flavour, status).inc()
        self._times.duration_s.labels(endpoint, status).observe(_seconds(job, job.ended_at))
        match end:
            case Completed(timing=timing):
                self._count.completed_work.labels(endpoint).inc(cost.work if cost else 0)
                if timing is not None:
                    self._note_timing(endpoint, timing)
            case Failed(dead_letter=reason) if reason is not None:
                self._count.dead_letters.labels(endpoint, reason).inc()

    def _note_timing(self, endpoint: str, timing: Timing) -> None:
        for stage, seconds in timing.stage_s.items():
            self._times.stage_s.labels(endpoint, stage).observe(seconds)
        if timing.rows_per_call is not None:
            self._times.rows.labels(endpoint).observe(timing.rows_per_call)


def _status(end: type[End]) -> str:
    return end.__name__.lower()


def _seconds(job: Job, until: datetime | None) -> float:
    """Return the seconds since the submission, at least 0, because clocks of nodes may differ."""
    return max(((until or job.submitted_at) - job.submitted_at).total_seconds(), 0.0)


_LOG = "JOBS"
"""The stream of the log."""


class LogMetrics:
    """The sizes of the log and the queues, and the lag of the projection, computed on request."""

    def __init__(
        self,
        read_model: ReadModel,
        *,
        states: Callable[[], Awaitable[Mapping[str, StreamState]]],
        stored_after: Callable[[int], Awaitable[datetime | None]],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`states` returns the state of each stream, by name.

        `stored_after` returns the time at which the log stored the first event after an offset, or
        None without such an event. Both functions raise LogUnavailable.
        """
        self._read_model = read_model
        self._states = states
        self._stored_after = stored_after
        self._now = now

    async def collect(self) -> Iterable[Metric]:
        """Compute the metrics. Raises LogUnavailable, DatabaseUnavailable."""
        offset = await self._read_model.offset()
        states = await self._states()
        log = states[_LOG]
        behind = max(log.last_sequence - offset, 0)
        since = await self._stored_after(offset) if behind else None
        lag_s = 0.0 if since is None else max((self._now() - since).total_seconds(), 0.0)
        sizes = {name: float(state.size_bytes) for name, state in states.items()}
        counts = {name: float(state.messages) for name, state in states.items()}
        blocked = await self._read_model.blocked.count()
        return [
            gauge_by("stream", "stream_bytes", "Bytes of the stream.", sizes),
            gauge_by("stream", "stream_messages", "Messages in the stream.", counts),
            gauge("log_fill_ratio", "Fill of the event log, 0 to 1.", log.fill),
            gauge("projection_lag_events", "Events that are not in the read model yet.", behind),
            gauge(
                "projection_lag_seconds",
                "Age of the oldest event that is not in the read model yet.",
                lag_s,
            ),
            gauge("jobs_blocked", "Jobs that the projection cannot continue.", blocked),
        ]
