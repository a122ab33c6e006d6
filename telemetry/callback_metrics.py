"""Counts the outcomes of callbacks and of presigned uploads in the callbacks role."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

from events.delivery import SendResult
from events.job import Job
from events.types import CallbackDelivered, CallbackExhausted, DeliveryEvent
from telemetry.exposition import gauge

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class CallbackMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        on_attempt: Callable[[Job, SendResult], None] = lambda _job, _result: None,
    ) -> None:
        """`on_attempt` is called with each attempt of a callback."""
        self._on_attempt = on_attempt
        self._attempts = Counter(
            "darkroom_callback_tries",
            "Attempts to deliver a callback: taken (accepted with 2xx), rejected (another answer), "
            "unanswered, or refused (the address is not allowed, and no connection was made).",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "darkroom_callback_try_seconds",
            "Duration of the attempts that got an answer.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._ended = Counter(
            "darkroom_callbacks_ended",
            "Deliveries that ended: delivered, or exhausted (no attempt follows).",
            ["outcome"],
            registry=registry,
        )
        self._upload_attempts = Counter(
            "darkroom_image_put_tries",
            "Attempts to send an image to a presigned URL, with the outcomes of callback attempts; "
            "refused includes images that are too large or no longer stored.",
            ["outcome"],
            registry=registry,
        )
        # Series start at 0, because Prometheus would see no increase in a series that starts at 1.
        for outcome in ("taken", "rejected", "unanswered", "refused"):
            self._attempts.labels(outcome)
            self._upload_attempts.labels(outcome)
        for outcome in ("delivered", "exhausted"):
            self._ended.labels(outcome)

    def note_attempt(self, job: Job, result: SendResult) -> None:
        self._on_attempt(job, result)
        self._attempts.labels(_outcome(result)).inc()
        if result.status is not None:
            self._seconds.observe(result.latency_s)

    def note_upload_attempt(self, result: SendResult) -> None:
        """Count an attempt of a presigned upload."""
        self._upload_attempts.labels(_outcome(result)).inc()

    def note_event(self, event: DeliveryEvent) -> None:
        match event:
            # An event with the attempt 0 is not counted: there was no callback.
            case CallbackDelivered(attempt=attempt) if attempt:
                self._ended.labels("delivered").inc()
            case CallbackExhausted():
                self._ended.labels("exhausted").inc()


class Breakers:
    """The number of receivers whose circuit breaker is open now."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    async def collect(self) -> Iterable[Metric]:
        text = "Receivers whose circuit breaker is open because they keep failing."
        return [gauge("callback_breakers_open", text, self._count())]


def _outcome(result: SendResult) -> str:
    if result.refused:
        return "refused"
    if result.status is None:
        return "unanswered"
    return "taken" if result.is_accepted else "rejected"
