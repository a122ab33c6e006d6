"""One HTTP replica, as its handlers see it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from events.job import Job
from events.log import utc_now
from events.store.records import KeyLimits
from serve_app.acceptance.acceptance import Acceptance
from serve_app.acceptance.withdrawals import Withdrawals
from serve_app.access.authenticator import Authenticator
from serve_app.access.open_jobs import OPEN_JOBS_PERIOD_S
from serve_app.access.rates import Rates
from serve_app.access.refusal_log import RefusalLog
from serve_app.access.token_buckets import TokenBuckets
from serve_app.access.waits import Waits
from serve_app.bodies import Bodies
from serve_app.checks import Checks
from serve_app.live.latest_previews import LatestPreviews
from serve_app.live.projected import Projected
from serve_app.live.queue_places import QueuePlaces
from serve_app.live.streams import Streams
from serve_app.operations.setup_warnings import SetupWarnings
from serve_app.services import Services
from settings.keys import KeySettings
from telemetry.edge_metrics import AskAll, EdgeMetrics
from telemetry.tracing.exporter import SpanExporter
from telemetry.tracing.spans import accept_spans


class Replica:
    """The services, and what only this replica keeps in memory: caches, limits, running tasks."""

    def __init__(
        self,
        services: Services,
        *,
        ask_metrics: AskAll,
        exporter: SpanExporter | None = None,  # of spans, where traces are wanted
        open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
        warnings: Sequence[str] = (),
    ) -> None:
        """`warnings`: what is probably set up otherwise than it was meant, beside models."""
        self.services = services
        self.setup_warnings = SetupWarnings(services.catalogue.models, warnings)
        self._exporter = exporter
        self.authenticator = _authenticator(services)
        self.metrics = EdgeMetrics(ask_metrics)
        self.refusal_log = RefusalLog(lines_per_s=services.key_settings.refusal_lines_per_s)
        http = services.http_settings
        replicas = http.replicas or 1
        self.rates = Rates(services.owner_settings, replicas=replicas)
        self.waits = Waits(services.owner_settings.max_waits)
        self.callback_tests = TokenBuckets()
        """How often each owner sends a sample callback."""
        self.callback_tests_per_minute = services.callback_settings.tests_per_minute / replicas
        """This replica's part of them."""
        self._checks = Checks(http.body_checks, timeout_s=http.body_wait_s)
        self.bodies = Bodies(http, self._checks)
        self.withdrawals = Withdrawals(
            log=services.log, writer=services.writer, queue=services.queue
        )
        self.acceptance = Acceptance(
            services, self.withdrawals, self._checks, open_jobs_period_s=open_jobs_period_s
        )
        self.upload_store = self.acceptance.upload_store
        self.sent_images = self.acceptance.sent_images
        self.projected = Projected(services.read_model.checkpoint)
        self.queue_places = QueuePlaces(services.queue, self.acceptance.endpoints.status)
        self.streams = Streams(services, self.queue_places)

    def note_accepted(self, job: Job, *, began: datetime) -> None:
        """A request was answered that began then. A repeat met a job that was there before it."""
        if self._exporter is not None and job.submitted_at >= began:
            self._exporter.add(accept_spans(job, began=began, ended=utc_now()))

    @cached_property
    def previews(self) -> LatestPreviews:
        """What its listeners keep of running jobs, from the first question on."""
        return LatestPreviews(self.services.progress)

    async def stop(self) -> None:
        await self.streams.stop()
        await self.projected.stop()
        await self.acceptance.stop()
        await self.withdrawals.stop()
        self.refusal_log.stop()
        self._checks.stop()


def _authenticator(services: Services) -> Authenticator:
    settings = services.key_settings
    return Authenticator(services.keys, ttl_s=settings.cache_s, defaults=_default_limits(settings))


def _default_limits(settings: KeySettings) -> KeyLimits:
    return KeyLimits(
        rate_per_s=settings.rate_per_s,
        burst=settings.burst,
        max_open_jobs=settings.max_open_jobs,
        max_cost=settings.max_cost,
        embed_metadata=settings.embed_metadata,
        image_format=settings.image_format,
        image_quality=settings.image_quality,
        endpoints=settings.endpoints,
        callback_hosts=settings.callback_hosts,
    )


def replica_of(connection: HTTPConnection) -> Replica:
    replica: Replica = connection.app.state.replica
    return replica


async def _replica(request: Request) -> Replica:
    """Not `replica_of` itself: FastAPI calls a function that is not async in a thread."""
    return replica_of(request)


ReplicaDep = Annotated[Replica, Depends(_replica)]
