"""The roles: each made from its settings, connected, and run until its process ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from actors import metering
from actors.archiving import open_archive, open_database
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
from actors.dispatch.ray_calls import RayCalls
from actors.dispatching import OpenCluster, in_ray, make_dispatcher, sharing_counts
from actors.housekeeping import make_archiver, make_janitor, make_projection
from actors.remote_keeper import keep_workers
from actors.routing import make_router
from actors.waiting.running_jobs import RunningJobs
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from events.wire.callback_keys import parts_of
from settings.settings import Settings

_KEEPER_TIMEOUT_S = 10.0
"""A keeper that is there answers at once; where none is, no worker is taken away."""


async def run_router(settings: Settings) -> None:
    """With the repair of both queues in the same process: it has little to do."""
    messaging = connect(settings.log, "router", lease_s=settings.workers.lease_s)
    database = await _prepared_database(settings)
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
    database = open_database(settings.stores)
    router = make_router(settings, messaging, database, repairs=False)
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(router.run())
        group.create_task(messaging.answer_metrics(metering.of_router().encoded))


async def run_results(settings: Settings) -> None:
    """With janitor and archiver in the same process: they have little to do."""
    messaging = connect(settings.log, "results", lease_s=settings.workers.lease_s)
    database = await _prepared_database(settings)
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
    database = await _prepared_database(settings)
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
    database = await _prepared_database(settings)
    metrics = metering.DispatcherMetrics(settings.telemetry)
    running_jobs = RunningJobs(settings.owners)
    dispatcher = make_dispatcher(
        settings,
        messaging,
        database,
        running_jobs=running_jobs,
        open_cluster=open_cluster or in_ray(settings, metrics),
        on_left=metrics.note_left,
    )
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatcher.run())
        group.create_task(messaging.answer_status(dispatcher.status))
        group.create_task(messaging.answer_metrics(metrics.watch(dispatcher, messaging).encoded))
        for run in sharing_counts(settings, messaging, running_jobs):
            group.create_task(run())


async def run_callbacks(settings: Settings, number: int = 1) -> None:
    """`number`: which of several processes this is. Each has the same parts of the queue always, so
    that what it knows of its receivers stays of use, and no database is asked who has which.
    """
    messaging = connect(settings.log, "callbacks", lease_s=settings.workers.lease_s)
    secret = settings.stores.secret_bytes
    # Not prepared here: deliveries do not wait for a database.
    database = open_database(settings.stores)
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
    callbacks = Callbacks(
        messaging.callback_queue,
        deliverer,
        settings=settings.callbacks,
        parts=parts_of(number, settings.callbacks.processes),
    )
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(callbacks.run())
        group.create_task(messaging.answer_metrics(metrics.watch(callbacks).encoded))
        for run in metrics.background:
            group.create_task(run())


async def _prepared_database(settings: Settings) -> Database:
    database = open_database(settings.stores)
    await database.prepare_persistently()
    return database
