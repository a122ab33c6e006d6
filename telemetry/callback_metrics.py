"""CallbackMetrics: what comes of callbacks, counted by the role that sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

from events.delivery_policy import SendResult
from events.job import Job
from events.types import CallbackDelivered, CallbackExhausted, DeliveryEvent
from telemetry.gauges import gauge

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class CallbackMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        on_try: Callable[[Job, SendResult], None] = lambda _job, _result: None,
    ) -> None:
        """`on_try` is told of each try, too."""
        self._on_try = on_try
        self._tries = Counter(
            "darkroom_callback_tries",
            "Tries to deliver a callback: taken (2xx), rejected (another answer), unanswered, or "
            "refused (the address is not allowed, and was not dialled).",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "darkroom_callback_try_seconds",
            "How long the tries took that were answered.",
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._ended = Counter(
            "darkroom_callbacks_ended",
            "Deliveries that ended: delivered, or exhausted, which nobody tries again.",
            ["outcome"],
            registry=registry,
        )
        self._puts = Counter(
            "darkroom_image_put_tries",
            "Tries to put an image where its caller said; outcomes as of callback tries, refused "
            "being also images that are too large or gone.",
            ["outcome"],
            registry=registry,
        )
        # What is 0 is said, too: Prometheus sees no rise in a series that begins with 1.
        for outcome in ("taken", "rejected", "unanswered", "refused"):
            self._tries.labels(outcome)
            self._puts.labels(outcome)
        for outcome in ("delivered", "exhausted"):
            self._ended.labels(outcome)

    def note_try(self, job: Job, result: SendResult) -> None:
        """Count a try to tell of the job."""
        self._on_try(job, result)
        self._tries.labels(_outcome(result)).inc()
        if result.status is not None:
            self._seconds.observe(result.latency_s)

    def note_put(self, result: SendResult) -> None:
        """Count a try to put an image."""
        self._puts.labels(_outcome(result)).inc()

    def note_event(self, event: DeliveryEvent) -> None:
        match event:
            case CallbackDelivered(attempt=attempt) if attempt:  # else there is no callback
                self._ended.labels("delivered").inc()
            case CallbackExhausted():
                self._ended.labels("exhausted").inc()


class Breakers:
    """How many receivers are left alone now."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    async def look(self) -> Iterable[Metric]:
        text = "Receivers that are left alone because they keep failing."
        return [gauge("callback_breakers_open", text, self._count())]


def _outcome(result: SendResult) -> str:
    if result.refused:
        return "refused"
    if result.status is None:
        return "unanswered"
    return "taken" if result.is_taken else "rejected"
