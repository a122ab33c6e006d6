"""Dispatcher: runs an `EndpointDispatcher` for each endpoint while this process holds a lease.

The lease in the database keeps a second dispatcher idle. Two dispatchers may still overlap for a
short time, for example after an outage of the database. This does no harm: each `Start` states the
number of attempts that its dispatcher has read. If two dispatchers start the same job, only one
`Started` is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from actors.connections import connect, open_prepared_database
from actors.scheduler.cluster import Cluster
from actors.scheduler.endpoint_dispatcher import DISPATCHER_LEASE_S, EndpointDispatcher
from actors.scheduler.endpoint_removal import DeletedEndpoints, RowlessEndpoints
from actors.scheduler.fairness import RunningJobs
from actors.scheduler.names import worker_prefix
from actors.scheduler.pool import PoolLimits, WorkerPool
from actors.scheduler.ray_cluster import RayCalls, RayCluster
from actors.scheduler.slots import SlotNumbers
from actors.scheduler.status import EndRate
from actors.scheduler.worker_reaper import keep_workers
from actors.worker.config import WorkerConfig, configured_endpoints, worker_config
from actors.worker.engine_process import EngineState
from engine.interface import Engine
from events.bus.queues import JobQueue
from events.bus.request_reply import answer_metrics, answer_status
from events.errors import DatabaseUnavailable
from events.log import JobWriter, RetryingLog
from events.store.endpoints import Endpoints
from events.store.leases import Leases, answered, lease_holder
from events.store.object_infos import ObjectInfos
from events.store.records import DEFAULT_ENDPOINT, ENDPOINTS_PERIOD_S, Endpoint
from settings.constant import constant
from settings.settings import Settings
from telemetry.dispatcher_metrics import DispatchMetrics, EngineMetrics
from telemetry.exposition import EndpointLabels, ProcessMetrics

logger = logging.getLogger(__name__)

T = TypeVar("T")

_REAPER_TIMEOUT_S = 10.0
"""Longest wait in seconds for the reaper of workers before the dispatcher starts."""
_LEASE_NAME = "dispatcher"
_COMFYUI_START_S = constant("COMFYUI_START_S", 3600.0)
"""Largest time in seconds until a ComfyUI server is ready. Its packs may compile or download."""


class Dispatcher:
    """Starts and stops the dispatchers of endpoints according to the database rows of endpoints."""

    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        endpoints: Endpoints,
        configured: Collection[Endpoint],
        open_endpoint: Callable[[Endpoint], EndpointDispatcher],
        deleted_endpoints: DeletedEndpoints,
        gone_endpoints: RowlessEndpoints,
        lease_s: float = DISPATCHER_LEASE_S,
        period_s: float = ENDPOINTS_PERIOD_S,
        on_left: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`holder` is the name of this process in the lease.

        `configured` are the endpoints of the settings. When this process first gets the lease,
        their values are written to their rows, except for members that were set explicitly.
        `on_left` is called with the id of an endpoint that this process no longer dispatches.
        """
        self._holder = holder
        self._leases = leases
        self._endpoints = endpoints
        self._configured = configured
        self._open_endpoint = open_endpoint
        self._removals = (deleted_endpoints, gone_endpoints)
        self._removing: list[asyncio.Task[None]] = []
        self._lease_s = lease_s
        self._period_s = period_s
        self._on_left = on_left
        self._lease_until = 0.0
        self._is_settled = False
        self._running: dict[str, tuple[EndpointDispatcher, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Dispatch until cancelled."""
        try:
            while True:
                began_at = time.monotonic()
                await self._reconcile()
                took_s = time.monotonic() - began_at
                await asyncio.sleep(min(self._period_s, self._lease_s / 3 - took_s))
        finally:
            self._cancel_removing()
            await self._leave_all()
            await asyncio.gather(*self._removing, return_exceptions=True)

    async def status(self, endpoint_id: str) -> Mapping[str, Any] | None:
        """Return the status of an endpoint (`EndpointStatus.describe`), or None if this process
        does not dispatch the endpoint. Raises LogUnavailable, ReadTimeout.
        """
        found = self._running.get(endpoint_id)
        return None if found is None else await found[0].status.describe()

    async def statuses(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the status of each dispatched endpoint. Raises LogUnavailable, ReadTimeout."""
        running = list(self._running.items())
        return {id: await dispatcher.status.describe() for id, (dispatcher, _) in running}

    async def _reconcile(self) -> None:
        """Renew the lease, read the rows, and start and stop endpoints accordingly."""
        if not await self._has_lease():
            self._cancel_removing()
            await self._leave_all()
            return
        try:
            if not self._is_settled:
                await self._query(self._endpoints.settle(self._configured))
                self._is_settled = True
            rows = {row.id: row for row in await self._query(self._endpoints.all())}
        except DatabaseUnavailable:
            return  # The same endpoints are dispatched until the database answers.
        for endpoint_id in self._running.keys() - rows.keys():
            await self._leave(endpoint_id)
        await self._reconcile_rows(rows)
        if all(task.done() for task in self._removing):
            self._removing = [asyncio.create_task(each.run()) for each in self._removals]

    async def _has_lease(self) -> bool:
        """Acquire or renew the lease. Returns whether this process holds the lease.

        While the database is unavailable, the last holder keeps the lease, so that jobs are still
        dispatched. No other process can acquire the lease from the same database.
        """
        began_at = time.monotonic()
        query = self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=self._lease_s)
        try:
            lasts_s = self._lease_until - began_at
            mine = await answered(query, within_s=max(lasts_s, self._lease_s / 3))
        except DatabaseUnavailable:
            return self._lease_until > 0.0
        self._lease_until = began_at + self._lease_s if mine else 0.0
        return mine

    async def _query(self, query: Coroutine[Any, Any, T]) -> T:
        """Return the result of a query. Raises DatabaseUnavailable if there is no result before the
        lease must be renewed.
        """
        lasts_s = self._lease_until - time.monotonic()
        return await answered(query, within_s=lasts_s - self._lease_s / 3)

    async def _reconcile_rows(self, rows: Mapping[str, Endpoint]) -> None:
        try:
            # The ids are recorded before workers are made. If an endpoint has workers, but neither
            # a row nor a record, `RowlessEndpoints` knows that the database was lost.
            await self._query(self._endpoints.note(rows.keys() - self._running.keys()))
        except DatabaseUnavailable:
            return
        for endpoint_id, (dispatcher, task) in list(self._running.items()):
            if task.done():
                # The dispatcher of the endpoint is made again below.
                logger.error("endpoint loop ended", exc_info=task.exception())
            if task.done() or rows.get(endpoint_id) != dispatcher.endpoint:
                await self._stop(endpoint_id)
        for endpoint_id, endpoint in rows.items():
            if endpoint_id not in self._running:
                dispatcher = self._open_endpoint(endpoint)
                task = asyncio.create_task(dispatcher.run(), name=endpoint_id)
                self._running[endpoint_id] = (dispatcher, task)

    async def _leave_all(self) -> None:
        await asyncio.gather(*map(self._leave, list(self._running)))

    def _cancel_removing(self) -> None:
        """Cancel the removals. Their end is not awaited, because they may wait for the database."""
        for task in self._removing:
            if not task.cancelling():
                task.cancel()

    async def _leave(self, endpoint_id: str) -> None:
        """Stop dispatching an endpoint. Jobs that run on its workers continue."""
        await self._stop(endpoint_id)
        self._on_left(endpoint_id)

    async def _stop(self, endpoint_id: str) -> None:
        _, task = self._running.pop(endpoint_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class DispatcherMetrics:
    def __init__(self) -> None:
        self.process = ProcessMetrics("dispatcher")
        self._endpoints = EndpointLabels()
        self._engines = EngineMetrics(self.process.registry, endpoints=self._endpoints)
        self.process.add(self._engines.collect)

    def note_engine(self, endpoint: str, worker: str, state: EngineState) -> None:
        self._engines.note(worker, endpoint, state.models, state.memory_bytes)

    def note_left(self, endpoint: str) -> None:
        """Remove the metrics of an endpoint that this process no longer dispatches."""
        self._engines.forget(endpoint)

    def watch(self, dispatcher: Dispatcher, queue: JobQueue) -> ProcessMetrics:
        """Add metrics from the status of the endpoints. Returns all metrics of this process."""
        dispatched = DispatchMetrics(
            queue=queue, statuses=dispatcher.statuses, endpoints=self._endpoints
        )
        self.process.add(dispatched.collect)
        return self.process


async def run(settings: Settings) -> None:
    """Run the dispatcher, and regularly call the reaper of workers so that it keeps the workers."""
    config = worker_config(settings, configured_endpoints(settings)[DEFAULT_ENDPOINT])
    calls, kept_s, reached = RayCalls(at_once=1), settings.dispatch.workers_kept_s, asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(keep_workers(config, calls, kept_s=kept_s, on_reached=reached.set))
        # Without this first call, the reaper could remove a worker that the dispatcher has found.
        with suppress(TimeoutError):
            await asyncio.wait_for(reached.wait(), _REAPER_TIMEOUT_S)
        group.create_task(run_dispatcher(settings))


async def run_dispatcher(
    settings: Settings, *, open_cluster: Callable[[WorkerConfig], Cluster] | None = None
) -> None:
    """Run the dispatcher. `open_cluster` replaces Ray as the cluster of the workers."""
    connections = connect(settings.log, "dispatcher")
    queue, writer = connections.queue, JobWriter(RetryingLog(connections.log))
    database = await open_prepared_database(settings.stores)
    endpoints, configured = Endpoints(database), configured_endpoints(settings)
    metrics, running_jobs = DispatcherMetrics(), RunningJobs(settings.owners)
    end_rates = defaultdict[str, EndRate](EndRate)
    in_ray = partial(
        RayCluster,
        calls=RayCalls(),
        on_engine=metrics.note_engine,
        keep_object_info=ObjectInfos(database).put,
    )
    cluster_for = open_cluster or in_ray
    cluster = cluster_for(worker_config(settings, configured[DEFAULT_ENDPOINT]))

    def open_endpoint(endpoint: Endpoint) -> EndpointDispatcher:
        config = worker_config(settings, endpoint)
        is_comfyui = endpoint.engine == "comfyui"
        pool = WorkerPool(
            endpoint,
            prefix=worker_prefix(config),
            cluster=cluster_for(config),
            idle_s=settings.dispatch.worker_idle_s,
            limits=PoolLimits(start_s=_COMFYUI_START_S) if is_comfyui else PoolLimits(),
            slots=SlotNumbers(
                most=endpoint.jobs_per_worker,
                expected=1 if is_comfyui else Engine.suggested_concurrency_for(),
                kept_free=settings.owners.slots_kept_free,
            ),
        )
        return EndpointDispatcher(
            endpoint,
            queue=queue,
            writer=writer,
            pool=pool,
            running_jobs=running_jobs,
            end_rate=end_rates[endpoint.id],
            secret=settings.stores.secret_bytes,
        )

    dispatcher = Dispatcher(
        holder=lease_holder(),
        leases=Leases(database),
        endpoints=endpoints,
        configured=configured.values(),
        open_endpoint=open_endpoint,
        deleted_endpoints=DeletedEndpoints(
            endpoints=endpoints, queue=queue, writer=writer, cluster=cluster
        ),
        gone_endpoints=RowlessEndpoints(
            endpoints=endpoints, queue=queue, writer=writer, cluster=cluster
        ),
        on_left=metrics.note_left,
    )
    await connections.bus.wait_connected()
    async with asyncio.TaskGroup() as group:
        group.create_task(dispatcher.run())
        group.create_task(answer_status(connections.bus, dispatcher.status))
        group.create_task(answer_metrics(connections.bus, metrics.watch(dispatcher, queue).encoded))
