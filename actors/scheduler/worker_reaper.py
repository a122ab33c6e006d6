"""The reaper of workers that no dispatcher uses. It runs in a Ray actor that outlives the service.

Workers outlive their dispatcher, so that the next dispatcher finds them. If no dispatcher follows,
for example after the end of the application, the workers would keep their nodes. So the dispatcher
calls the reaper regularly. If the reaper has not been called for `DARKROOM_WORKERS_KEPT_S` seconds,
it removes each worker that is idle.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ray

from actors.scheduler.cluster import ActorUnavailable, Cluster
from actors.scheduler.names import ALL_WORKERS
from actors.scheduler.ray_cluster import RayCalls, RayCluster, answer
from actors.worker.config import WorkerConfig
from actors.worker.engine_process import NAMESPACE
from settings.version import VERSION
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)


_LOG = {"action": "remove_abandoned"}
_LONGEST_PAUSE_S = 5.0


class WorkerReaper:
    def __init__(
        self, cluster: Cluster, *, kept_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Without a dispatcher, workers are kept for `kept_s` seconds. The workers of all endpoints
        are removed, so `cluster` may be made for any of them.
        """
        self._cluster = cluster
        self._kept_s = kept_s
        self._clock = clock
        self._kept_until = clock() + kept_s

    def keep(self) -> None:
        """Keep the workers for another `kept_s` seconds. Any thread may call this."""
        self._kept_until = self._clock() + self._kept_s

    async def run(self) -> None:
        """Remove idle workers while there is no dispatcher, until no worker is left."""
        while True:
            if await self.sweep():
                return
            await asyncio.sleep(min(self._kept_s / 4, _LONGEST_PAUSE_S))

    async def sweep(self) -> bool:
        """Remove idle workers if there is no dispatcher. Returns whether no worker is left."""
        if self._is_kept():
            return False
        began = self._clock()
        try:
            workers = await self._cluster.workers(ALL_WORKERS)
            if self._clock() - began > self._kept_s / 4:
                # If the cluster is slow, the call of a dispatcher may be late, too.
                self.keep()
            left = [worker for worker in workers if not await self._remove(worker)]
        except ActorUnavailable as error:
            logger.warning("the workers could not be listed", extra=_LOG | {"error": str(error)})
            self.keep()
            return False
        return not left and not self._is_kept()

    def _is_kept(self) -> bool:
        return self._clock() < self._kept_until

    async def _remove(self, worker: str) -> bool:
        """Remove a worker if it is idle. Returns whether the worker was removed.

        A dispatcher may start during `is_idle` and give the worker a job. So `_is_kept` is also
        checked after `is_idle`.
        """
        if self._is_kept() or not await self._cluster.is_idle(worker) or self._is_kept():
            return False
        await self._cluster.remove(worker)
        logger.warning("a worker without a dispatcher is removed", extra=_LOG | {"worker": worker})
        return True


CPU_NODE = {"darkroom_cpu": 0.001}
"""Only CPU nodes have this resource, so an actor that needs it keeps no GPU node alive."""
NAME = "reaper"
_CALLS = 6
"""Number of calls by a dispatcher in the time for which workers are kept."""
_ANSWER_TIMEOUT_S = 60.0
"""Time-out of a call in seconds, including the start of the reaper."""
_LEAST_PAUSE_S = 0.1


class ReaperProcess:
    """The process of the reaper. It ends when neither a dispatcher nor a worker is left."""

    def __init__(self, config: WorkerConfig, kept_s: float) -> None:
        """`config` may be the config of any endpoint."""
        set_up_logging(log_format=config.log_format)
        cluster = RayCluster(config, calls=RayCalls(at_once=1))
        self._made_for = (VERSION, kept_s)
        self._reaper = WorkerReaper(cluster, kept_s=kept_s)
        threading.Thread(target=self._host, args=(cluster,), name=NAME, daemon=True).start()

    def keep(self, version: str, kept_s: float) -> bool:
        """Keep the workers. Returns False if the dispatcher has another version or `kept_s`, and so
        must make another reaper.
        """
        self._reaper.keep()
        return (version, kept_s) == self._made_for

    def _host(self, cluster: RayCluster) -> None:
        try:
            asyncio.run(self._reaper.run())
            # Ray would restart an actor whose process exits, so the actor is killed.
            asyncio.run(cluster.kill(NAME))
        except BaseException:
            logger.exception("reaper ended", extra={"action": "reaper_end"})
        os._exit(1)


ReaperActor = ray.remote(ReaperProcess)


async def keep_workers(
    config: WorkerConfig,
    calls: RayCalls,
    *,
    kept_s: float,
    on_reached: Callable[[], None] = lambda: None,
) -> None:
    """Call the reaper until cancelled, so that it keeps the workers.

    If `kept_s` is 0, no reaper is made, and no worker is removed. `on_reached` is called after each
    answer of the reaper, or if there is no reaper.
    """
    # The handle is kept for times when Ray's head is unavailable, because Ray cannot find actors.
    reaper: Any = None
    while True:
        try:
            if not kept_s:
                await calls.run(_end_reaper)
                on_reached()
                return
            reaper = reaper or await calls.run(partial(_find_or_make, config, kept_s))
            if not await answer(reaper.keep, VERSION, kept_s, timeout_s=_ANSWER_TIMEOUT_S):
                # The next reaper is made after a pause. Without the pause, two dispatchers of
                # different versions would continuously replace each other's reaper.
                await calls.run(partial(ray.kill, reaper))
                reaper = None
            on_reached()
        except ActorUnavailable as error:
            reaper = None
            fields = {"action": "keep_workers", "error": str(error)}
            logger.warning("the reaper of workers could not be reached", extra=fields)
        await asyncio.sleep(max(kept_s / _CALLS, _LEAST_PAUSE_S))


def _end_reaper() -> None:
    """End the reaper of an earlier application, because it would remove the workers."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor == {"namespace": NAMESPACE, "name": NAME}:
            ray.kill(ray.get_actor(NAME, NAMESPACE))


def _find_or_make(config: WorkerConfig, kept_s: float) -> Any:
    return ReaperActor.options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        resources=CPU_NODE,
    ).remote(config, kept_s)
