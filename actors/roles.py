"""The roles: each made from its settings, connected, and run until its process ends."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from actors import metering
from actors.archiving import open_archive
from actors.assembly import (
    address_rule,
    connect,
    default_endpoint,
    open_images,
    url_maker,
    worker_config,
)
from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.deliverer import Deliverer
from actors.callbacks.image_puts import ImagePuts
from actors.callbacks.lost import LostCallbacks
from actors.callbacks.role import Callbacks
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from actors.dispatch.cluster import Cluster
from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.endpoint import EndpointDispatcher
from actors.dispatch.names import worker_prefix
from actors.dispatch.pool import WorkerPool
from actors.dispatch.ray_calls import RayCalls
from actors.dispatch.ray_cluster import RayCluster
from actors.dispatch.slots import SlotNumbers
from actors.endpoints.deleted_endpoints import DeletedEndpoints
from actors.endpoints.gone_endpoints import GoneEndpoints
from actors.endpoints.pace import Pace
from actors.endpoints.status import EndpointStatus
from actors.housekeeping import make_archiver, make_janitor, make_projection
from actors.remote_keeper import keep_workers
from actors.routing import make_router
from actors.sharing import lease_holder
from actors.waiting.running_jobs import RunningJobs
from actors.worker.config import WorkerConfig
from engine.batch_limits import jobs_in
from events.log import JobWriter
from events.persistent_log import PersistentLog
from events.queue import JobQueue
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.records import Endpoint
from events.wire.callback_keys import parts_of
from settings.settings import Settings

OpenCluster: TypeAlias = Callable[[WorkerConfig], Cluster]
_KEEPER_TIMEOUT_S = 10.0
"""A keeper that is there answers at once; where none is, no worker is taken away."""


async def run_router(settings: Settings) -> None:
    """With the repair of both queues in the same process: it has little to do."""
    messaging = connect(settings.log, "router", lease_s=settings.workers.lease_s)
    database = await _open_database(settings)
    archiving = open_archive(database, open_images(settings.stores))
    history = archiving.history(log=messaging.log, deliveries=messaging.deliveries)
    router = make_router(settings, messaging, database, repairs=True)
    lost_callbacks = LostCallbacks(
        queue=messaging.callback_queue,
        unsettled=ReadModel(database, streams=messaging.log_streams).unsettled,
        deliveries=history.delivery_log,
        period_s=settings.dispatch.requeue_period_s,
        batch=settings.callbacks.repair_batch,
    )
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(router.run())
        group.create_task(messaging.answer_metrics(metering.of_router().encoded))
        group.create_task(lost_callbacks.run())


async def run_further_router(settings: Settings) -> None:
    """A further process that routes its share of the streams, and does nothing else."""
    messaging = connect(settings.log, "router", lease_s=settings.workers.lease_s)
    # Not prepared here: routing does not wait for a database.
    database = Database(settings.stores.effective_database_url)
    router = make_router(settings, messaging, database, repairs=False)
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(router.run())
        group.create_task(messaging.answer_metrics(metering.of_router().encoded))


async def run_results(settings: Settings) -> None:
    """With janitor and archiver in the same process: they have little to do."""
    messaging = connect(settings.log, "results", lease_s=settings.workers.lease_s)
    database = await _open_database(settings)
    metrics = metering.ResultsMetrics.of(settings.telemetry, messaging, database)
    results = make_projection(settings, messaging, database, metrics.read_model)
    images = open_images(settings.stores)
    async with asyncio.TaskGroup() as group:
        group.create_task(messaging.tell_log_size())
        group.create_task(messaging.answer_metrics(metrics.process.encoded))
        for run in metrics.background:
            group.create_task(run())
        group.create_task(results.run())
        group.create_task(make_janitor(settings, messaging, database, images).run())
        group.create_task(make_archiver(settings, messaging, database, images).run())


async def run_projection(settings: Settings) -> None:
    """A further process that projects its share of the streams, and does nothing else."""
    messaging = connect(settings.log, "projection", lease_s=settings.workers.lease_s)
    database = await _open_database(settings)
    metrics = metering.ResultsMetrics.of(settings.telemetry, messaging, database, says_stores=False)
    results = make_projection(settings, messaging, database, metrics.read_model)
    async with asyncio.TaskGroup() as group:
        group.create_task(messaging.answer_metrics(metrics.process.encoded))
        for run in metrics.background:
            group.create_task(run())
        group.create_task(results.run())


async def run_lasting_dispatcher(settings: Settings) -> None:
    """Its workers outlive it, for as long as the keeper lets them."""
    config = worker_config(settings, default_endpoint(settings.default_endpoint))
    calls, kept_s, said = RayCalls(at_once=1), settings.dispatch.workers_kept_s, asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(keep_workers(config, calls, kept_s=kept_s, on_said=said.set))
        # First, so that no worker is taken away that was just given a job.
        with suppress(TimeoutError):
            await asyncio.wait_for(said.wait(), _KEEPER_TIMEOUT_S)
        group.create_task(run_dispatcher(settings))


async def run_dispatcher(settings: Settings, *, open_cluster: OpenCluster | None = None) -> None:
    """`open_cluster`: where workers of a config run; if it is not given, in Ray."""
    messaging = connect(settings.log, "dispatcher", lease_s=settings.workers.lease_s)
    database = await _open_database(settings)
    queue, writer = messaging.queue, JobWriter(PersistentLog(messaging.log))
    endpoints, default = Endpoints(database), default_endpoint(settings.default_endpoint)
    metrics = metering.DispatcherMetrics(settings.telemetry)
    open_cluster = open_cluster or _in_ray(settings, metrics)
    any_cluster = open_cluster(worker_config(settings, default))
    period_s = settings.dispatch.endpoints_period_s
    dispatcher = Dispatcher(
        holder=lease_holder(),
        leases=Leases(database),
        endpoints=endpoints,
        default_endpoint=default,
        open_endpoint=_open_endpoint(settings, queue, writer, open_cluster),
        deleted_endpoints=DeletedEndpoints(
            endpoints=endpoints,
            queue=queue,
            writer=writer,
            cluster=any_cluster,
            period_s=period_s,
        ),
        gone_endpoints=GoneEndpoints(
            endpoints=endpoints,
            queue=queue,
            writer=writer,
            cluster=any_cluster,
            grace_s=settings.dispatch.endpoint_gone_s,
        ),
        lease_s=settings.dispatch.dispatcher_lease_s,
        period_s=period_s,
    )
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatcher.run())
        group.create_task(messaging.answer_status(dispatcher.status))
        group.create_task(messaging.answer_metrics(metrics.watch(dispatcher, messaging).encoded))


def _open_endpoint(
    settings: Settings, queue: JobQueue, writer: JobWriter, open_cluster: OpenCluster
) -> Callable[[Endpoint], EndpointDispatcher]:
    """What makes the dispatcher of an endpoint, again after each change of its row."""
    running_jobs, paces = RunningJobs(settings.owners), defaultdict[str, Pace](Pace)

    def open_endpoint(endpoint: Endpoint) -> EndpointDispatcher:
        pool = _worker_pool(settings, endpoint, open_cluster)
        pace = paces[endpoint.id]
        return EndpointDispatcher(
            endpoint,
            queue=queue,
            writer=writer,
            pool=pool,
            running_jobs=running_jobs,
            status=EndpointStatus(endpoint.id, queue=queue, writer=writer, pool=pool, pace=pace),
            lease_s=settings.workers.lease_s,
            settings=settings.dispatch,
        )

    return open_endpoint


def _in_ray(settings: Settings, metrics: metering.DispatcherMetrics) -> OpenCluster:
    calls = RayCalls(at_once=settings.dispatch.ray_calls)

    def open_cluster(config: WorkerConfig) -> Cluster:
        on_engine = partial(metrics.note_engine, config.endpoint.id)
        return RayCluster(config, calls=calls, on_engine=on_engine)

    return open_cluster


def _worker_pool(settings: Settings, endpoint: Endpoint, open_cluster: OpenCluster) -> WorkerPool:
    config = worker_config(settings, endpoint)
    return WorkerPool(
        endpoint,
        prefix=worker_prefix(config),
        cluster=open_cluster(config),
        settings=settings.dispatch,
        engine_silence_s=settings.workers.engine_answer_timeout_s,
        slots=SlotNumbers(
            most=endpoint.jobs_per_worker,
            expected=jobs_in(settings.engine.max_rows),
            kept_free=settings.owners.slots_kept_free,
            spare=settings.dispatch.spare_job_actors,
            starting=settings.dispatch.job_actors_starting,
            idle_s=settings.dispatch.job_actor_idle_s,
        ),
    )


async def run_callbacks(settings: Settings, number: int = 1) -> None:
    """`number`: which of several processes this is. Each has the same parts of the queue always, so
    that what it knows of its receivers stays of use, and no database is asked who has which.
    """
    messaging = connect(settings.log, "callbacks", lease_s=settings.workers.lease_s)
    secret = settings.stores.secret_bytes
    # Not prepared here: deliveries do not wait for a database.
    database = Database(settings.stores.effective_database_url)
    keys = ApiKeys(database)
    images = open_images(settings.stores)
    archiving = open_archive(database, images)
    # A job whose callback is asked for again may be in the archive.
    history = archiving.history(log=messaging.log, deliveries=messaging.deliveries)
    metrics = metering.DeliveryMetrics(settings.telemetry)
    sender = Sender(address_rule(settings), settings=settings.callbacks)
    deliverer = Deliverer(
        queue=messaging.callback_queue,
        jobs=history.log,
        deliveries=history.delivery_log,
        sender=sender,
        url_for=url_maker(settings),
        secrets=SigningSecrets(keys, secret=secret, most=settings.callbacks.secrets),
        allowed_hosts=AllowedHosts(keys, default=settings.keys.callback_hosts),
        image_puts=ImagePuts(sender, images, secret=secret, settings=settings.image_puts),
        settings=settings.callbacks,
        metrics=metrics.callbacks,
    )
    processes = settings.callbacks.processes
    callbacks = Callbacks(
        messaging.callback_queue,
        deliverer,
        settings=settings.callbacks,
        parts=parts_of(number, processes) if processes > 1 else None,
    )
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(callbacks.run())
        group.create_task(messaging.answer_metrics(metrics.watch(callbacks).encoded))
        for run in metrics.background:
            group.create_task(run())


async def _open_database(settings: Settings) -> Database:
    database = Database(settings.stores.effective_database_url)
    await database.prepare_persistently()
    return database
