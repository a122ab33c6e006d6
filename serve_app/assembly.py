"""Builds one HTTP replica: opens its connections, builds its parts, and makes the ASGI application.

`build_asgi` performs all steps.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI

from actors.callbacks.api_key_data import SigningSecrets
from actors.callbacks.guarded_backend import Proxy, Resolver
from actors.callbacks.own_addresses import address_rule
from actors.callbacks.sample import SampleCallback
from actors.callbacks.sender import Sender
from actors.connections import (
    Connections,
    image_urls,
    open_connections,
    open_database,
    open_history,
    open_images,
    open_removal,
)
from actors.fetcher import Fetcher
from actors.roles import ROLES
from actors.worker.config import configured_endpoints
from engine.interface import Catalogue, ModelsFolder, installed_nodes
from events.bus.health import JetStreamHealth
from events.bus.jetstream_log import LogContents, log_contents
from events.bus.progress import ProgressBoard as BusProgressBoard
from events.bus.queues import CallbackQueue, JobQueue
from events.bus.request_reply import answer_metrics, ask_metrics, ask_status
from events.callback_address import AddressRule, Resolve
from events.errors import DatabaseUnavailable
from events.history import History
from events.log import JobWriter
from events.result import UrlFor
from events.retry import keep_trying
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys, KeyOptions
from events.store.object_infos import ObjectInfos
from events.store.read_model import ReadModel
from events.store.records import DEFAULT_ENDPOINT, ApiKey, Endpoint, KeyLimits
from events.store.removal import Removal
from events.store.uploads import Uploads
from events.store.user_files import UserFiles
from events.store.workflows import Workflows
from events.types import CallbackAttempted
from serve_app.acceptance.abandoned_jobs import AbandonedJobs
from serve_app.acceptance.acceptance import Acceptance, LogHealth
from serve_app.acceptance.addresses import Addresses
from serve_app.acceptance.inline_images import Fetch, InlineImageStore
from serve_app.acceptance.resubmission import Resubmission
from serve_app.access.api_keys import Authenticator
from serve_app.access.owner_limits import OPEN_JOBS_PERIOD_S, OwnerLimits, Waits
from serve_app.access.rates import Rates, TokenBuckets
from serve_app.access.refusal_log import RefusalLog
from serve_app.answers import PageCache, list_turns
from serve_app.api import create_api
from serve_app.bodies import Bodies
from serve_app.endpoints.administration import EndpointAdministration
from serve_app.endpoints.cache import EndpointCache
from serve_app.endpoints.declared import DeclaredEndpoints
from serve_app.fair_threads import FairThreads
from serve_app.jobs import Jobs
from serve_app.live.progress import LatestPreviews, ProgressBoard
from serve_app.live.projected import ProjectionWaiter
from serve_app.live.queue_positions import QueuePositions
from serve_app.live.streams import Streams
from serve_app.protocols.comfyui.user_files import MAX_BYTES, MAX_FILES
from serve_app.replica import (
    Administration,
    CallbackAccess,
    Callers,
    Files,
    JobAccess,
    Live,
    Replica,
    Submission,
)
from serve_app.setup_warnings import SetupWarnings, variable_warnings
from serve_app.upload_store import UploadStore
from serve_app.workflows.named import NamedWorkflows
from settings.constant import constant
from settings.keys import KeySettings
from settings.settings import Settings
from storage.images import ImageStore
from telemetry.api_metrics import ApiMetrics, QueryProcesses
from telemetry.exporter import SpanExporter, open_exporter
from telemetry.exposition import METRICS_TIMEOUT_S

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
_LOG_KNOWN_S = constant("LOG_KNOWN_S", 10.0)
"""Seconds for which the last state of the log and the queues is used while NATS does not answer.
After this time, submissions are refused with 503.
"""
_READY_PERIOD_S = constant("READY_PERIOD_S", 5.0)
"""Seconds for which the result of `/health/ready` is cached."""
_OWNER_MAX_STREAMS = constant("OWNER_MAX_STREAMS", 256)
"""The largest number of event streams of an owner in one HTTP process."""


def build_asgi(settings: Settings, *, is_in_serve: bool = False) -> FastAPI:
    """Build the ASGI application of one replica. It answers before its connections are open."""
    connections = open_connections(
        settings.log,
        f"api@{socket.gethostname()}",
        max_staleness_s=_LOG_KNOWN_S,
    )
    bus = connections.bus
    database = open_database(settings.stores)
    resolver = Resolver()
    rule = address_rule(
        settings.callbacks, http=settings.http, log=settings.log, stores=settings.stores
    )
    sender = Sender(rule, proxy=settings.callbacks.proxy, resolve=resolver.resolve)
    backends = _backends(
        settings, connections, database, rule=rule, resolve=resolver.resolve, sender=sender
    )
    exporter = open_exporter(settings.telemetry, "api")
    replica = assemble(
        settings,
        backends,
        secret=settings.stores.secret_bytes,
        configured=configured_endpoints(settings),
        exporter=exporter,
        warnings=variable_warnings(Settings.unknown_variables(os.environ)),
    )

    @asynccontextmanager
    async def background() -> AsyncGenerator[None]:
        tasks = [
            asyncio.create_task(answer_metrics(bus, replica.metrics.encoded)),
            asyncio.create_task(_prepare(database, settings)),
            asyncio.create_task(backends.progress.run()),
            asyncio.create_task(replica.metrics.event_loop.run()),
        ]
        if exporter is not None:
            tasks.append(asyncio.create_task(exporter.run()))
        bus.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await bus.close()
            await database.close()
            await sender.close()
            resolver.close()

    return create_api(
        replica,
        http=settings.http,
        protocol_settings=settings.protocols,
        background=background,
        is_in_serve=is_in_serve,
    )


async def _prepare(database: Database, settings: Settings) -> None:
    await database.prepare_with_retries()
    endpoints, configured = Endpoints(database), configured_endpoints(settings)
    # If the database is unavailable, the dispatcher adds the endpoints later.
    with suppress(DatabaseUnavailable):
        for endpoint in configured.values():
            await endpoints.add_missing(endpoint)
    if (path := settings.default_endpoint.file) is not None:
        declared = DeclaredEndpoints(endpoints, configured=configured, settings=settings.dispatch)
        await keep_trying(lambda: declared.apply(path), on=DatabaseUnavailable)


@dataclass(frozen=True, kw_only=True)
class Backends:
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
    ask_metrics: QueryProcesses
    catalogue: Catalogue
    address_rule: AddressRule
    resolve: Resolve
    fetch: Fetch
    send_sample: Callable[[str, ApiKey], Awaitable[CallbackAttempted]]
    url_for: UrlFor


def _backends(
    settings: Settings,
    connections: Connections,
    database: Database,
    *,
    rule: AddressRule,
    resolve: Resolve,
    sender: Sender,
) -> Backends:
    bus, log, deliveries = connections.bus, connections.log, connections.deliveries
    images = open_images(settings.stores)
    url_for = image_urls(settings.http, settings.stores)
    processes = len(ROLES) + (settings.http.replicas or 1)
    proxy = settings.callbacks.proxy
    fetcher = Fetcher(
        rule,
        max_bytes=settings.http.max_upload_bytes,
        # Its own resolver, so that look-ups for images do not delay callbacks. The threads of the
        # resolver end with the process.
        resolve=Resolver().resolve,
        proxy=None if proxy is None else Proxy.at(proxy.get_secret_value()),
    )
    secrets = SigningSecrets(ApiKeys(database), secret=settings.stores.secret_bytes)
    return Backends(
        database=database,
        images=images,
        removal=open_removal(database, images, ReadModel(database), log=log, deliveries=deliveries),
        history=open_history(database, images, log=log, deliveries=deliveries),
        log_contents=log_contents(bus),
        queue=connections.queue,
        callback_queue=connections.callback_queue,
        health=JetStreamHealth(bus, ready_period_s=_READY_PERIOD_S, max_staleness_s=_LOG_KNOWN_S),
        progress=BusProgressBoard(bus),
        endpoint_status=partial(ask_status, bus),
        ask_metrics=partial(ask_metrics, bus, enough=processes, timeout_s=METRICS_TIMEOUT_S),
        catalogue=Catalogue(
            ModelsFolder(settings.stores.models_dir, comfyui_dir=settings.comfyui.dir),
            installed_nodes(),
        ),
        address_rule=rule,
        resolve=resolve,
        fetch=fetcher.fetch,
        send_sample=SampleCallback(sender=sender, secrets=secrets, url_for=url_for).send,
        url_for=url_for,
    )


def assemble(
    settings: Settings,
    backends: Backends,
    *,
    secret: bytes,
    configured: Mapping[str, Endpoint],
    exporter: SpanExporter | None = None,
    warnings: Sequence[str] = (),
    open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
) -> Replica:
    """Build a replica without opening connections.

    Ids, file tokens and webhook secrets are derived from `secret`. `configured` are the endpoints
    of the settings by id; their database rows may differ. `exporter` receives the spans of accepted
    requests. `warnings` are known problems of the setup.
    """
    database, http, owners = backends.database, settings.http, settings.owners
    log, deliveries = backends.history.log, backends.history.delivery_log
    read_model, uploads, endpoints = ReadModel(database), Uploads(database), Endpoints(database)
    replicas = http.replicas or 1
    threads = FairThreads.of_bodies()
    bodies = Bodies(
        threads,
        max_bytes=http.max_body_bytes,
        max_upload_bytes=http.max_upload_bytes,
    )
    writer = JobWriter(log)
    jobs = Jobs(
        log=log,
        writer=writer,
        queue=backends.queue,
        read_model=read_model,
        removal=backends.removal,
    )
    authenticator = Authenticator(ApiKeys(database), defaults=_default_limits(settings.keys))
    owner_limits = OwnerLimits(read_model.usage, owners, open_jobs_period_s=open_jobs_period_s)
    store = UploadStore(rows=uploads, images=backends.images, owner_limits=owner_limits)
    endpoint_cache = EndpointCache(endpoints, ObjectInfos(database), backends.endpoint_status)
    abandoned_jobs = AbandonedJobs(log=log, writer=writer, queue=backends.queue)
    acceptance = Acceptance(
        jobs=jobs,
        writer=writer,
        queue=backends.queue,
        health=backends.health,
        endpoints=endpoint_cache,
        addresses=Addresses(
            backends.address_rule,
            backends.resolve,
            takes_uploads=settings.callbacks.presigned_uploads,
            secret=secret,
        ),
        threads=threads,
        catalogue=backends.catalogue,
        graph_settings=settings.graph,
        default_checkpoint=configured[DEFAULT_ENDPOINT].checkpoint,
        uploads=uploads,
        inline_images=InlineImageStore(
            store,
            threads,
            backends.fetch if http.fetch_images else None,
            max_bytes=http.max_upload_bytes,
        ),
        owner_limits=owner_limits,
        abandoned_jobs=abandoned_jobs,
        job_timeout_s=settings.dispatch.job_timeout_s,
        secret=secret,
        exporter=exporter,
    )
    queue_positions = QueuePositions(backends.queue, endpoint_cache.status)
    projected = ProjectionWaiter(read_model.offset, backends.log_contents.last_sequence)
    streams = Streams(
        jobs,
        backends.history,
        backends.log_contents,
        ended_jobs=EndedJobs(database),
        progress=backends.progress,
        queue_positions=queue_positions,
        url_for=backends.url_for,
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
        threads.stop()

    return Replica(
        callers=Callers(
            authenticator=authenticator,
            rates=Rates(owners, replicas=replicas),
            refusal_log=refusal_log,
        ),
        submission=Submission(
            acceptance=acceptance,
            owner_limits=owner_limits,
            bodies=bodies,
            uploads=store,
            catalogue=backends.catalogue,
            workflows=NamedWorkflows(Workflows(database), acceptance, threads),
        ),
        job_access=JobAccess(
            jobs=jobs,
            read_model=read_model,
            projected=projected,
            deliveries=deliveries,
            uploads=uploads,
            files=Files(
                images=backends.images,
                url_for=backends.url_for,
                public_url=http.effective_public_url,
                secret=secret,
                image_url_s=http.image_url_ttl_s,
                job_days=settings.retention.retention_days,
                upload_days=settings.retention.upload_retention_days,
            ),
            live=Live(
                progress=backends.progress,
                previews=LatestPreviews(backends.progress),
                queue_positions=queue_positions,
                streams=streams,
            ),
            catalogue=backends.catalogue,
            bodies=bodies,
            list_turns=list_turns(),
            node_types=PageCache(),
            waits=Waits(_OWNER_MAX_WAITS),
        ),
        callback_access=CallbackAccess(
            jobs=jobs,
            deliveries=deliveries,
            read_model=read_model,
            ended_jobs=EndedJobs(database),
            queue=backends.callback_queue,
            address_rule=backends.address_rule,
            max_redeliveries=_MAX_REDELIVERIES,
            send_sample=backends.send_sample,
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
                backends.catalogue.models,
                configured=configured,
                owners=owners,
                dispatch=settings.dispatch,
                graph=settings.graph,
            ),
            endpoint_cache=endpoint_cache,
            queue=backends.queue,
            bodies=bodies,
            secret=secret,
        ),
        key_options=KeyOptions(database),
        user_files=UserFiles(database, max_files=MAX_FILES, max_bytes=MAX_BYTES),
        health=backends.health,
        setup_warnings=SetupWarnings(
            backends.catalogue.models, warnings, needs_checkpoint=settings.comfyui.dir is None
        ),
        metrics=ApiMetrics(backends.ask_metrics),
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
