"""The roles: each made from its settings, connected, and run until its process ends."""

from __future__ import annotations

import asyncio
import os
import socket

from actors.assembly import (
    address_rule,
    connect,
    default_endpoint,
    url_maker,
    worker_config,
)
from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.lost import LostCallbacks
from actors.callbacks.role import Callbacks
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.endpoint import EndpointDispatcher
from actors.dispatch.names import worker_prefix
from actors.dispatch.pool import WorkerPool
from actors.dispatch.ray_calls import RayCalls
from actors.dispatch.ray_cluster import RayCluster
from actors.dispatch.router import Router
from actors.dispatch.running_jobs import RunningJobs
from actors.upkeep.janitor import Janitor
from actors.upkeep.results import Results
from events.delivery_policy import longest_delivery_s
from events.ids import new_id
from events.log import JobWriter
from events.persistent_log import PersistentLog
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.records import Endpoint
from events.store.removal import Removal
from events.store.uploads import Uploads
from settings.callbacks import CallbackSettings
from settings.settings import Settings
from storage.images import ImageStore


async def run_router(settings: Settings) -> None:
    """With the repair of the callback queue in the same process: it has little to do."""
    messaging = connect(settings.log, "router", lease_s=settings.workers.lease_s)
    read_model = ReadModel(await _open_database(settings))
    router = Router(
        events=messaging.routed_events,
        writer=JobWriter(messaging.log),
        queue=messaging.queue,
        callbacks=messaging.callback_queue,
        read_model=read_model,
        requeue_period_s=settings.dispatch.requeue_period_s,
    )
    lost_callbacks = LostCallbacks(
        queue=messaging.callback_queue,
        unsettled=read_model.unsettled,
        deliveries=messaging.deliveries,
        period_s=settings.dispatch.requeue_period_s,
        batch=settings.callbacks.repair_batch,
    )
    await messaging.connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(router.run())
        group.create_task(lost_callbacks.run())


async def run_results(settings: Settings) -> None:
    """With the janitor in the same process: it has little to do."""
    messaging = connect(settings.log, "results", lease_s=settings.workers.lease_s)
    database = await _open_database(settings)
    log, read_model = messaging.log, ReadModel(database)
    images = ImageStore(settings.stores.effective_images_url)
    janitor = Janitor(
        holder=_holder(),
        leases=Leases(database),
        log=log,
        read_model=read_model,
        uploads=Uploads(database),
        images=images,
        removal=Removal(
            log=log, deliveries=messaging.deliveries, images=images, read_model=read_model
        ),
        settings=settings.retention,
        longest_job_s=settings.dispatch.job_timeout_s,
        longest_delivery_s=_longest_delivery_s(settings.callbacks),
    )
    results = Results(
        log=log,
        read_model=read_model,
        catch_up_period_s=settings.dispatch.requeue_period_s,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(results.run())
        group.create_task(janitor.run())


async def run_dispatcher(settings: Settings) -> None:
    messaging = connect(settings.log, "dispatcher", lease_s=settings.workers.lease_s)
    database = await _open_database(settings)
    writer = JobWriter(PersistentLog(messaging.log))
    running_jobs = RunningJobs(settings.owners)
    ray_calls = RayCalls(at_once=settings.dispatch.ray_calls)

    def open_endpoint(endpoint: Endpoint) -> EndpointDispatcher:
        config = worker_config(settings, endpoint)
        return EndpointDispatcher(
            endpoint,
            queue=messaging.queue,
            writer=writer,
            pool=WorkerPool(
                endpoint,
                prefix=worker_prefix(config),
                cluster=RayCluster(config, calls=ray_calls),
                settings=settings.dispatch,
            ),
            running_jobs=running_jobs,
            hold_renew_s=settings.workers.lease_s / 3,
            max_dispatch_failures=settings.dispatch.max_dispatch_failures,
            deadlines_period_s=settings.dispatch.deadlines_period_s,
        )

    dispatcher = Dispatcher(
        holder=_holder(),
        leases=Leases(database),
        endpoints=Endpoints(database),
        default_endpoint=default_endpoint(settings.default_endpoint),
        open_endpoint=open_endpoint,
        lease_s=settings.dispatch.dispatcher_lease_s,
        period_s=settings.dispatch.endpoints_period_s,
    )
    await messaging.connected()
    await dispatcher.run()


async def run_callbacks(settings: Settings) -> None:
    messaging = connect(settings.log, "callbacks", lease_s=settings.workers.lease_s)
    secret = settings.stores.secret_bytes
    # Not prepared here: deliveries do not wait for a database.
    keys = ApiKeys(Database(settings.stores.effective_database_url))
    callbacks = Callbacks(
        queue=messaging.callback_queue,
        jobs=messaging.log,
        deliveries=messaging.deliveries,
        sender=Sender(address_rule(settings), settings=settings.callbacks),
        url_for=url_maker(settings),
        secrets=SigningSecrets(keys, secret=secret, most=settings.callbacks.secrets),
        allowed_hosts=AllowedHosts(keys, default=settings.keys.callback_hosts),
        settings=settings.callbacks,
    )
    await messaging.connected()
    await callbacks.run()


def _longest_delivery_s(settings: CallbackSettings) -> float:
    return longest_delivery_s(
        delays_s=settings.delays_s, jitter=settings.jitter, withheld_s=settings.withheld_s
    )


def _holder() -> str:
    """A name for lease rows, unique to this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id()}"


async def _open_database(settings: Settings) -> Database:
    database = Database(settings.stores.effective_database_url)
    await database.prepare_persistently()
    return database


ROLES = {
    "router": "actors.roles:run_router",
    "results": "actors.roles:run_results",
    "dispatcher": "actors.roles:run_dispatcher",
    "callbacks": "actors.roles:run_callbacks",
}
"""By import path: a role's process finds its own, and nothing has to travel."""
