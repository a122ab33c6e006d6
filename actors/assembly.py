"""Wiring: every collaborator is made and handed over here."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from actors.attempt import AttemptLimits
from actors.callbacks import Callbacks
from actors.dispatcher import Dispatcher, EndpointDispatcher
from actors.engine import EngineClient, EngineHost
from actors.job import JobRunner
from actors.plan import planner
from actors.results import Results
from actors.router import Router
from actors.sender import Sender
from actors.workers import WorkerPool
from engine.catalogue import Catalogue
from engine.engine import Engine
from engine.graph import Limits
from engine.models_folder import ModelsFolder
from events.callback_address import AddressRule
from events.ids import new_id
from events.jetstream import Bus
from events.jetstream_log import JetStreamLog, PersistentLog
from events.log import JobWriter, utc_now
from events.queues import CallbackQueue, JobQueue
from events.read_model import Database, Endpoints, Leases, ReadModel
from events.records import Endpoint
from events.streams import DELIVERIES, delivery_subject
from settings import Settings
from storage.images import ImageStore
from storage.tokens import url_for

logger = logging.getLogger(__name__)


def open_bus(settings: Settings, name: str) -> Bus:
    """A bus, not started yet."""
    if settings.nats_url is None:
        raise ValueError("DARKROOM_NATS_URL is not set")
    return Bus(
        settings.nats_url,
        name=name,
        replicas=settings.log_replicas,
        log_max_bytes=settings.log_max_bytes,
    )


def open_log(settings: Settings, bus: Bus) -> JetStreamLog:
    return JetStreamLog(
        bus,
        append_timeout_s=settings.append_timeout_s,
        try_timeout_s=settings.append_try_timeout_s,
    )


def graph_limits(settings: Settings, endpoint: Endpoint | None = None) -> Limits:
    """The service's own limits, tightened by the endpoint's."""
    limits = Limits(
        max_nodes=settings.max_nodes, max_side=settings.max_side_px, max_batch=settings.max_batch
    )
    if endpoint is None:
        return limits
    return Limits(
        max_nodes=limits.max_nodes,
        max_side=limits.max_side,
        max_batch=limits.max_batch,
        max_steps=endpoint.max_steps,
        max_pixels=endpoint.max_pixels,
    )


def default_endpoint(settings: Settings) -> Endpoint:
    return Endpoint(
        id="default",
        checkpoint=settings.default_checkpoint,
        gpus=settings.worker_gpus,
        cpus=settings.worker_cpus,
        min_workers=settings.min_workers,
        max_workers=settings.max_workers,
        jobs_per_worker=settings.jobs_per_worker,
    )


def build_engine_host(settings: Settings, *, device: str) -> EngineHost:
    models = ModelsFolder(settings.models_dir)
    engine = Engine(
        models=models,
        device=device,
        max_rows=settings.max_rows,
        cache_bytes=settings.model_cache_bytes,
        threads=os.cpu_count(),
    )
    engine.start()
    return EngineHost(engine=engine, catalogue=Catalogue(models), limits=graph_limits(settings))


async def build_job_runner(
    settings: Settings, endpoint: Endpoint, *, actor: str, engine: EngineClient
) -> JobRunner:
    """Returns once it is connected."""
    bus = open_bus(settings, actor)
    bus.start()
    catalogue = Catalogue(ModelsFolder(settings.models_dir))
    runner = JobRunner(
        actor=actor,
        bus=bus,
        log=PersistentLog(open_log(settings, bus)),
        images=ImageStore(settings.effective_images_url),
        engine=engine,
        plan=planner(catalogue, graph_limits(settings, endpoint), endpoint.checkpoint),
        limits=AttemptLimits(
            step_timeout_s=settings.step_timeout_s,
            model_load_timeout_s=settings.model_load_timeout_s,
        ),
        lease_renew_s=settings.lease_renew_s,
        max_attempts=settings.max_attempts,
        now=utc_now,
    )
    await bus.wait_connected()
    return runner


async def run_router(settings: Settings) -> None:
    bus = open_bus(settings, "router")
    bus.start()
    database = await _open_database(settings)
    router = Router(
        bus=bus,
        writer=JobWriter(open_log(settings, bus)),
        queue=JobQueue(bus, lease_s=settings.lease_s),
        callbacks=CallbackQueue(bus),
        read_model=ReadModel(database),
        requeue_period_s=settings.requeue_period_s,
    )
    await router.run()


async def run_results(settings: Settings) -> None:
    bus = open_bus(settings, "results")
    bus.start()
    database = await _open_database(settings)
    results = Results(log=open_log(settings, bus), read_model=ReadModel(database))
    await results.run()


async def run_dispatcher(settings: Settings) -> None:
    bus = open_bus(settings, "dispatcher")
    bus.start()
    database = await _open_database(settings)
    queue = JobQueue(bus, lease_s=settings.lease_s)
    writer = JobWriter(PersistentLog(open_log(settings, bus)))

    def open_endpoint(endpoint: Endpoint) -> EndpointDispatcher:
        return EndpointDispatcher(
            endpoint,
            bus=bus,
            queue=queue,
            writer=writer,
            pool=WorkerPool(endpoint, settings=settings),
            hold_renew_s=settings.lease_s / 3,
        )

    dispatcher = Dispatcher(
        holder=f"{socket.gethostname()}:{os.getpid()}:{new_id()}",
        bus=bus,
        leases=Leases(database),
        endpoints=Endpoints(database),
        default_endpoint=default_endpoint(settings),
        open_endpoint=open_endpoint,
        lease_s=settings.dispatcher_lease_s,
        period_s=settings.endpoints_period_s,
    )
    await dispatcher.run()


async def run_callbacks(settings: Settings) -> None:
    bus = open_bus(settings, "callbacks")
    bus.start()
    rule = AddressRule(
        allow_networks=settings.callback_allow_networks,
        require_https=settings.callback_require_https,
        ports=settings.callback_ports,
    )
    deliveries = JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject)
    callbacks = Callbacks(
        bus=bus,
        queue=CallbackQueue(bus),
        jobs=open_log(settings, bus),
        deliveries=deliveries,
        sender=Sender(rule, settings=settings),
        url_for=url_for(settings.effective_public_url, settings.secret_bytes),
        secret=settings.secret_bytes,
        settings=settings,
    )
    await callbacks.run()


async def _open_database(settings: Settings) -> Database:
    database = Database(settings.effective_database_url)
    await database.prepare_persistently()
    return database


ROLES: dict[str, Callable[[Settings], Coroutine[Any, Any, None]]] = {
    "router": run_router,
    "results": run_results,
    "dispatcher": run_dispatcher,
    "callbacks": run_callbacks,
}
