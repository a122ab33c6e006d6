"""Builds the parts of one HTTP replica from its settings and connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.interface import Catalogue
from events.callback_address import AddressRule, Resolve
from events.history import History
from events.log import JobWriter, LogContents
from events.queue import CallbackQueue, JobQueue
from events.result import UrlFor
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys, KeyOptions
from events.store.read_model import ReadModel
from events.store.records import ApiKey, Endpoint, KeyLimits
from events.store.removal import Removal
from events.store.uploads import Uploads
from events.store.user_files import UserFiles
from events.types import CallbackAttempted
from serve_app.acceptance.abandoned_jobs import AbandonedJobs
from serve_app.acceptance.acceptance import Acceptance, LogHealth
from serve_app.acceptance.addresses import Addresses
from serve_app.acceptance.inline_images import Fetch, InlineImageStore
from serve_app.acceptance.resubmission import Resubmission
from serve_app.access.authenticator import Authenticator
from serve_app.access.owner_limits import OPEN_JOBS_PERIOD_S, OwnerLimits, Waits
from serve_app.access.rates import Rates, TokenBuckets
from serve_app.access.refusal_log import RefusalLog
from serve_app.bodies import Bodies
from serve_app.checks import Checks
from serve_app.endpoints.administration import EndpointAdministration
from serve_app.endpoints.cache import EndpointCache
from serve_app.jobs import Jobs
from serve_app.live.progress import LatestPreviews, ProgressBoard
from serve_app.live.projected import ProjectionWaiter
from serve_app.live.queue_positions import QueuePositions
from serve_app.live.streams import Streams
from serve_app.protocols.comfyui.user_files import MAX_BYTES, MAX_FILES
from serve_app.replica import (
    Access,
    Administration,
    Callbacks,
    Files,
    Live,
    Reading,
    Replica,
    Submission,
)
from serve_app.setup_warnings import SetupWarnings
from serve_app.upload_store import UploadStore
from settings.constant import constant
from settings.keys import KeySettings
from settings.settings import Settings
from storage.images import ImageStore
from telemetry.api_metrics import ApiMetrics, AskAll
from telemetry.exporter import SpanExporter

CALLBACK_TESTS_PER_MINUTE = constant("CALLBACK_TESTS_PER_MINUTE", 10)
"""The largest number of sample callbacks of an owner per minute."""
_MAX_REDELIVERIES = constant("CALLBACK_MAX_REDELIVERIES", 100)
"""The largest number of redeliveries of one job's callback."""
_KEY_BURST = constant("KEY_BURST", 20)
"""The largest number of requests that a key may send at once after a pause, if the key has a rate
but no burst.
"""
_IMAGE_QUALITY = constant("KEY_IMAGE_QUALITY", 90)
"""The quality of WebP and JPEG images if neither the request nor the key has one."""
_OWNER_MAX_WAITS = constant("OWNER_MAX_WAITS", 512)
"""The largest number of requests of an owner that wait for a result in one HTTP process."""
_OWNER_MAX_STREAMS = constant("OWNER_MAX_STREAMS", 256)
"""The largest number of event streams of an owner in one HTTP process."""


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """The connections of a replica to the stores, the log, the queues and other processes."""

    database: Database
    images: ImageStore
    removal: Removal
    history: History
    """All events of jobs and deliveries, including events that are no longer in the log."""
    log_contents: LogContents
    queue: JobQueue
    callback_queue: CallbackQueue
    health: LogHealth
    progress: ProgressBoard
    endpoint_status: Callable[[str], Coroutine[Any, Any, Mapping[str, Any] | None]]
    """Returns the status of an endpoint's dispatcher; None if the dispatcher does not answer."""
    ask_metrics: AskAll
    catalogue: Catalogue
    address_rule: AddressRule
    resolve: Resolve
    fetch: Fetch
    send_sample: Callable[[str, ApiKey], Awaitable[CallbackAttempted]]
    url_for: UrlFor


def assemble(
    settings: Settings,
    outside: Dependencies,
    *,
    secret: bytes,
    default_endpoint: Endpoint,
    exporter: SpanExporter | None = None,
    warnings: Sequence[str] = (),
    open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
) -> Replica:
    """Build a replica without opening connections.

    Ids, file tokens and webhook secrets are derived from `secret`. `default_endpoint` is as in the
    settings; its database row may differ. `exporter` receives the spans of accepted requests.
    `warnings` are known problems of the setup.
    """
    database, http, owners = outside.database, settings.http, settings.owners
    log, deliveries = outside.history.log, outside.history.delivery_log
    read_model, uploads, endpoints = ReadModel(database), Uploads(database), Endpoints(database)
    replicas = http.replicas or 1
    checks = Checks.of_bodies()
    bodies = Bodies(
        checks,
        max_bytes=http.max_body_bytes,
        max_upload_bytes=http.max_upload_bytes,
    )
    writer = JobWriter(log)
    jobs = Jobs(
        log=log,
        writer=writer,
        queue=outside.queue,
        read_model=read_model,
        removal=outside.removal,
    )
    authenticator = Authenticator(ApiKeys(database), defaults=_default_limits(settings.keys))
    owner_limits = OwnerLimits(read_model.usage, owners, open_jobs_period_s=open_jobs_period_s)
    store = UploadStore(rows=uploads, images=outside.images, owner_limits=owner_limits)
    endpoint_cache = EndpointCache(endpoints, outside.endpoint_status)
    abandoned_jobs = AbandonedJobs(log=log, writer=writer, queue=outside.queue)
    acceptance = Acceptance(
        jobs=jobs,
        writer=writer,
        queue=outside.queue,
        health=outside.health,
        endpoints=endpoint_cache,
        addresses=Addresses(
            outside.address_rule,
            outside.resolve,
            takes_uploads=settings.callbacks.presigned_uploads,
            secret=secret,
        ),
        checks=checks,
        catalogue=outside.catalogue,
        graph_settings=settings.graph,
        default_checkpoint=default_endpoint.checkpoint,
        uploads=uploads,
        inline_images=InlineImageStore(
            store,
            checks,
            outside.fetch if http.fetch_images else None,
            max_bytes=http.max_upload_bytes,
        ),
        owner_limits=owner_limits,
        abandoned_jobs=abandoned_jobs,
        job_timeout_s=settings.dispatch.job_timeout_s,
        secret=secret,
        exporter=exporter,
    )
    queue_positions = QueuePositions(outside.queue, endpoint_cache.status)
    projected = ProjectionWaiter(read_model.offset, outside.log_contents.last_sequence)
    streams = Streams(
        jobs,
        outside.history,
        outside.log_contents,
        ended_jobs=EndedJobs(database),
        progress=outside.progress,
        queue_positions=queue_positions,
        url_for=outside.url_for,
        max_of_owner=_OWNER_MAX_STREAMS,
    )
    refusal_log = RefusalLog()

    async def stop() -> None:
        await streams.stop()
        await projected.stop()
        await acceptance.stop()
        await abandoned_jobs.stop()
        refusal_log.stop()
        store.stop()
        checks.stop()

    return Replica(
        access=Access(
            authenticator=authenticator,
            rates=Rates(owners, replicas=replicas),
            refusal_log=refusal_log,
        ),
        submission=Submission(
            acceptance=acceptance,
            owner_limits=owner_limits,
            bodies=bodies,
            uploads=store,
            catalogue=outside.catalogue,
        ),
        reading=Reading(
            jobs=jobs,
            read_model=read_model,
            projected=projected,
            deliveries=deliveries,
            uploads=uploads,
            files=Files(
                images=outside.images,
                url_for=outside.url_for,
                public_url=http.effective_public_url,
                secret=secret,
                image_url_s=http.image_url_ttl_s,
                job_days=settings.retention.retention_days,
                upload_days=settings.retention.upload_retention_days,
            ),
            live=Live(
                progress=outside.progress,
                previews=LatestPreviews(outside.progress),
                queue_positions=queue_positions,
                streams=streams,
            ),
            catalogue=outside.catalogue,
            bodies=bodies,
            waits=Waits(_OWNER_MAX_WAITS),
        ),
        callbacks=Callbacks(
            jobs=jobs,
            deliveries=deliveries,
            read_model=read_model,
            ended_jobs=EndedJobs(database),
            queue=outside.callback_queue,
            address_rule=outside.address_rule,
            max_redeliveries=_MAX_REDELIVERIES,
            send_sample=outside.send_sample,
            samples=TokenBuckets(),
            samples_per_minute=CALLBACK_TESTS_PER_MINUTE / replicas,
        ),
        administration=Administration(
            jobs=jobs,
            read_model=read_model,
            resubmission=Resubmission(
                jobs, writer, endpoints=endpoints, uploads=uploads, secret=secret
            ),
            keys=ApiKeys(database),
            authenticator=authenticator,
            endpoints=EndpointAdministration(
                endpoints,
                outside.catalogue.models,
                default=default_endpoint,
                owners=owners,
                dispatch=settings.dispatch,
                graph=settings.graph,
            ),
            endpoint_cache=endpoint_cache,
            queue=outside.queue,
            bodies=bodies,
            secret=secret,
        ),
        key_options=KeyOptions(database),
        user_files=UserFiles(database, max_files=MAX_FILES, max_bytes=MAX_BYTES),
        health=outside.health,
        setup_warnings=SetupWarnings(outside.catalogue.models, warnings),
        metrics=ApiMetrics(outside.ask_metrics),
        stop=stop,
    )


def _default_limits(settings: KeySettings) -> KeyLimits:
    return KeyLimits(
        rate_per_s=0,
        burst=_KEY_BURST,
        max_open_jobs=0,
        max_cost=0,
        embed_metadata=settings.embed_metadata,
        image_format=settings.image_format,
        image_quality=_IMAGE_QUALITY,
        endpoints=("*",),
        callback_hosts=settings.callback_hosts,
    )
