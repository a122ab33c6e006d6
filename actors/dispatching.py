"""The dispatcher, put together: of all endpoints, or one of several that divide them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from actors.assembly import Messaging, default_endpoint, worker_config
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
from actors.metering import DispatcherMetrics
from actors.sharing import lease_holder, make_shares
from actors.waiting.running_elsewhere import RunningElsewhere
from actors.waiting.running_jobs import RunningJobs
from actors.worker.config import WorkerConfig
from engine.batch_limits import jobs_in
from events.log import JobWriter
from events.persistent_log import PersistentLog
from events.queue import JobQueue
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.leases import Leases
from events.store.records import Endpoint
from settings.settings import Settings

OpenCluster: TypeAlias = Callable[[WorkerConfig], Cluster]
Run: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def make_dispatcher(
    settings: Settings,
    messaging: Messaging,
    database: Database,
    *,
    running_jobs: RunningJobs,
    open_cluster: OpenCluster,
    on_left: Callable[[str], None],
) -> Dispatcher:
    """`on_left`: see `Dispatcher`."""
    queue, writer = messaging.queue, JobWriter(PersistentLog(messaging.log))
    endpoints, default = Endpoints(database), default_endpoint(settings.default_endpoint)
    cluster = open_cluster(worker_config(settings, default))
    dispatch, period_s = settings.dispatch, settings.dispatch.endpoints_period_s
    return Dispatcher(
        holder=lease_holder(),
        leases=Leases(database),
        endpoints=endpoints,
        default_endpoint=default,
        open_endpoint=_open_endpoint(
            settings, queue, writer, running_jobs=running_jobs, open_cluster=open_cluster
        ),
        deleted_endpoints=DeletedEndpoints(
            endpoints=endpoints, queue=queue, writer=writer, cluster=cluster, period_s=period_s
        ),
        gone_endpoints=GoneEndpoints(
            endpoints=endpoints,
            queue=queue,
            writer=writer,
            cluster=cluster,
            grace_s=dispatch.endpoint_gone_s,
        ),
        lease_s=dispatch.dispatcher_lease_s,
        period_s=period_s,
        shares=make_shares(settings, database, "dispatcher", processes=dispatch.dispatchers),
        on_left=on_left,
    )


def sharing_counts(
    settings: Settings, messaging: Messaging, running_jobs: RunningJobs
) -> Sequence[Run]:
    """What runs beside a dispatcher so that the bound of an owner's jobs holds over all of them."""
    if settings.dispatch.dispatchers == 1 or not settings.owners.max_running_jobs:
        return ()
    elsewhere = RunningElsewhere(
        running_jobs, dispatcher=lease_holder(), tell=messaging.tell_running
    )
    return elsewhere.run, partial(messaging.hear_running, elsewhere.hear)


def in_ray(settings: Settings, metrics: DispatcherMetrics) -> OpenCluster:
    calls = RayCalls(at_once=settings.dispatch.ray_calls)

    def open_cluster(config: WorkerConfig) -> Cluster:
        on_engine = partial(metrics.note_engine, config.endpoint.id)
        return RayCluster(config, calls=calls, on_engine=on_engine)

    return open_cluster


def _open_endpoint(
    settings: Settings,
    queue: JobQueue,
    writer: JobWriter,
    *,
    running_jobs: RunningJobs,
    open_cluster: OpenCluster,
) -> Callable[[Endpoint], EndpointDispatcher]:
    """What makes the dispatcher of an endpoint, again after each change of its row."""
    paces = defaultdict[str, Pace](Pace)

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
