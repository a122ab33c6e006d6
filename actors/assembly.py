"""Wiring: every collaborator is made and handed over here."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from actors.callbacks.own_addresses import interface_addresses, own_services
from actors.worker.attempt import AttemptLimits
from actors.worker.config import EngineConfig, WorkerConfig
from actors.worker.engine_host import EngineClient, EngineHost
from actors.worker.job import JobRunner
from actors.worker.plan import planner
from actors.worker.process_memory import job_actors_that_fit
from actors.worker.progress import ReportProgress
from engine.activity import TimeLimits
from engine.engine import Engine
from engine.extensions.installed import installed_extensions, log_extensions, nodes_of
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.nodes import NODE_TYPES
from engine.options import DeviceOptions, UnetOptions
from events.bus.bus import Bus
from events.bus.consumer import JobEvents
from events.bus.dispatching.endpoint_status import answer_status
from events.bus.dispatching.running_jobs import hear_running, tell_running
from events.bus.health import tell_log_size
from events.bus.jetstream_log import JetStreamLog
from events.bus.logs.job_log import job_log
from events.bus.progress import ProgressReporter
from events.bus.queues import JetStreamCallbackQueue, JetStreamJobQueue
from events.bus.streams import DELIVERIES, delivery_subject, log_stream_names
from events.bus.telemetry.metrics import answer_metrics
from events.bus.telemetry.streams import stored_after, stream_states
from events.callback_address import AddressRule
from events.callback_networks import Own
from events.log import EventLog, WholeConsumer, WholeLog, utc_now
from events.persistent_log import PersistentLog
from events.queue import CallbackQueue, JobQueue
from events.result import UrlFor
from events.store.records import Endpoint
from events.streams.log_streams import LogStreams
from events.wire.running import RunningCounts
from settings.endpoint import EndpointSettings
from settings.engine import EngineSettings
from settings.log import LogSettings
from settings.settings import Settings
from settings.stores import StoreSettings
from storage.images import ImageStore
from storage.tokens import url_for
from telemetry.streams import Streams


def open_bus(settings: LogSettings, name: str) -> Bus:
    """A bus, not started yet."""
    if settings.nats_url is None:
        raise ValueError("DARKROOM_NATS_URL is not set")
    return Bus(
        settings.nats_url.get_secret_value(),
        name=name,
        replicas=settings.replicas,
        log_max_bytes=settings.max_bytes,
        ca_file=settings.nats_ca_file,
        log_streams=LogStreams(settings.streams),
    )


def open_log(settings: LogSettings, bus: Bus) -> WholeLog:
    return job_log(
        bus,
        append_timeout_s=settings.append_timeout_s,
        try_timeout_s=settings.append_try_timeout_s,
    )


def open_deliveries(bus: Bus) -> JetStreamLog:
    return JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject)


StatusOf: TypeAlias = Callable[[str], Awaitable[Mapping[str, Any] | None]]
"""What is known of an endpoint; None where somebody else knows more."""
SayMetrics: TypeAlias = Callable[[], Awaitable[bytes]]
AnswerStatus: TypeAlias = Callable[[StatusOf], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class Messaging:
    """The logs and the queues, as one process reaches them over one connection."""

    log: WholeLog
    deliveries: EventLog
    queue: JobQueue
    callback_queue: CallbackQueue
    routed_events: WholeConsumer
    """Every event of the log, for the router."""
    report_progress: ReportProgress
    connected: Callable[[], Awaitable[None]]
    """Returns once there is a connection and the streams are there."""
    answer_status: AnswerStatus
    """Answers what is asked about endpoints, until cancelled."""
    tell_running: Callable[[RunningCounts], Awaitable[None]]
    """Tells the other dispatchers what runs here."""
    hear_running: Callable[[Callable[[RunningCounts], None]], Coroutine[None, None, None]]
    """Hears what dispatchers tell of what they run, until cancelled."""
    answer_metrics: Callable[[SayMetrics], Coroutine[None, None, None]]
    """Says what the process says of itself to whoever asks, until cancelled."""
    streams: Streams
    log_streams: LogStreams
    tell_log_size: Callable[[], Coroutine[None, None, None]]
    """Says, once it is connected, where the log has another size than the settings."""


def connect(settings: LogSettings, name: str, *, lease_s: float) -> Messaging:
    """Begin to connect, as `name`. Needs a running event loop."""
    bus = open_bus(settings, name)
    bus.start()
    return Messaging(
        log=open_log(settings, bus),
        deliveries=open_deliveries(bus),
        queue=JetStreamJobQueue(bus, lease_s=lease_s),
        callback_queue=JetStreamCallbackQueue(bus),
        routed_events=JobEvents(bus),
        report_progress=ProgressReporter(bus).report,
        connected=bus.wait_connected,
        answer_status=partial(answer_status, bus),
        tell_running=partial(tell_running, bus),
        hear_running=partial(hear_running, bus),
        answer_metrics=partial(answer_metrics, bus),
        streams=Streams(
            partial(stream_states, bus),
            log_stream_names(bus.log_streams),
            partial(stored_after, bus),
        ),
        log_streams=bus.log_streams,
        tell_log_size=partial(tell_log_size, bus, configured=settings.max_bytes),
    )


def default_endpoint(settings: EndpointSettings) -> Endpoint:
    return Endpoint(
        id="default",
        checkpoint=settings.checkpoint,
        gpus=settings.gpus,
        cpus=settings.cpus,
        min_workers=settings.min_workers,
        max_workers=settings.max_workers,
        jobs_per_worker=settings.jobs_per_worker,
        precision=settings.precision,
        channels_last=settings.channels_last,
        compiler=settings.compiler,
    )


def worker_config(settings: Settings, endpoint: Endpoint) -> WorkerConfig:
    return WorkerConfig(
        endpoint=endpoint,
        workers=settings.workers,
        engine=settings.engine,
        graph=settings.graph,
        log=settings.log,
        images_url=settings.stores.effective_images_url,
        images_retry_s=settings.stores.images_retry_s,
        models_dir=settings.stores.models_dir,
        models_timeout_s=settings.stores.models_timeout_s,
        log_format=settings.telemetry.log_format,
        is_traced=settings.telemetry.otlp_url is not None,
    )


def open_images(stores: StoreSettings) -> ImageStore:
    return ImageStore(stores.effective_images_url, retry_s=stores.images_retry_s)


def _models(config: EngineConfig | WorkerConfig) -> ModelsFolder:
    """Read anew for each job: the edge that accepted it may have seen a file before us."""
    return ModelsFolder(config.models_dir, ttl_s=0, timeout_s=config.models_timeout_s)


def build_engine_host(config: EngineConfig, *, device: str) -> EngineHost:
    models = _models(config)
    limits = Limits(**config.endpoint.limits(config.graph))
    extensions = installed_extensions()
    log_extensions(extensions)
    more_nodes = nodes_of(extensions)
    engine = Engine(
        models=models,
        options=device_options(config.engine, config.endpoint, device=device),
        max_rows=config.engine.max_rows,
        job_memory_bytes=config.engine.job_memory_bytes,
        exclusive_s=config.workers.exclusive_timeout_s,
        progress_period_s=config.engine.progress_period_s,
        limits=limits,
        more_nodes=more_nodes,
    )
    engine.start()
    time_limits = TimeLimits(
        step_s=config.workers.step_timeout_s, load_s=config.workers.model_load_timeout_s
    )
    return EngineHost(
        engine=engine,
        catalogue=Catalogue(models, (*NODE_TYPES, *more_nodes)),
        limits=limits,
        time_limits=time_limits,
        most_jobs=job_actors_that_fit(),
    )


def device_options(settings: EngineSettings, endpoint: Endpoint, *, device: str) -> DeviceOptions:
    return DeviceOptions(
        device=device,
        threads=settings.threads or os.cpu_count(),
        cache_bytes=settings.model_cache_bytes,
        text_cache_bytes=settings.text_cache_bytes,
        step_seed_offset=settings.step_seed_offset,
        preview_period_s=settings.preview_period_s,
        weight_streaming=settings.weight_streaming,
        unets=UnetOptions(
            precision=endpoint.precision or "auto",
            channels_last=bool(endpoint.channels_last),
            compiler=endpoint.compiler,
        ),
    )


@dataclass(frozen=True, slots=True)
class JobActorParts:
    """What a job actor works with."""

    runner: JobRunner
    queue: JobQueue


async def connect_job_actor(
    config: WorkerConfig, *, actor: str, engine: EngineClient
) -> JobActorParts:
    """Returns once it is connected."""
    messaging = connect(config.log, actor, lease_s=config.workers.lease_s)
    catalogue = Catalogue(_models(config))
    graph_limits = Limits(**config.endpoint.limits(config.graph))
    runner = JobRunner(
        actor=actor,
        log=PersistentLog(messaging.log),
        images=ImageStore(config.images_url, retry_s=config.images_retry_s),
        engine=engine,
        plan=planner(catalogue, graph_limits, config.endpoint.checkpoint),
        report_progress=messaging.report_progress,
        limits=AttemptLimits(
            start_s=config.workers.model_load_timeout_s,
            silence_s=config.workers.engine_answer_timeout_s,
        ),
        lease_renew_s=config.workers.lease_renew_s,
        max_attempts=config.workers.max_attempts,
        max_attempts_total=config.workers.max_attempts_total,
        now=utc_now,
        is_traced=config.is_traced,
    )
    await messaging.connected()
    return JobActorParts(runner, messaging.queue)


def address_rule(settings: Settings) -> AddressRule:
    """Which addresses a callback may go to."""
    callbacks = settings.callbacks
    services = own_services(settings.http, settings.log, settings.stores, callbacks)
    return AddressRule(
        allow_networks=callbacks.allow_networks,
        deny_networks=callbacks.deny_networks,
        own=Own(services=tuple(services), interfaces=interface_addresses),
        require_https=callbacks.require_https,
        ports=callbacks.ports,
    )


def url_maker(settings: Settings) -> UrlFor:
    """Raises ValueError where the settings have no secret."""
    http = settings.http
    secret = settings.stores.secret_bytes
    return url_for(http.effective_public_url, secret, ttl_s=http.image_url_ttl_s)
