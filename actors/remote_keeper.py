"""What gives abandoned workers back, as a Ray actor that outlives the application."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import ray

from actors.dispatch.cluster import ActorUnavailable
from actors.dispatch.ray_actors import answer
from actors.dispatch.ray_calls import RayCalls
from actors.dispatch.ray_cluster import RayCluster
from actors.endpoints.abandoned_workers import AbandonedWorkers
from actors.logs import set_up_logging
from actors.remote_engine import NAMESPACE
from actors.worker.config import WorkerConfig
from settings.version import VERSION

logger = logging.getLogger(__name__)

CPU_NODE = {"darkroom_cpu": 0.001}
"""Only CPU nodes have this resource: an actor that needs it never keeps a GPU node alive."""
NAME = "keeper"
_ASKS = 6
"""How often a dispatcher says that it is there in the time that workers are kept."""
_ANSWER_TIMEOUT_S = 60.0
"""It may have to start first."""
_LEAST_PAUSE_S = 0.1


class KeeperProcess:
    """Begins by itself, also where Ray makes it anew, and ends once no worker is left to keep."""

    def __init__(self, config: WorkerConfig, kept_s: float) -> None:
        """`config`: of any endpoint."""
        set_up_logging(log_format=config.log_format)
        cluster = RayCluster(config, calls=RayCalls(at_once=1))
        self._made_for = (VERSION, kept_s)
        self._abandoned = AbandonedWorkers(cluster, kept_s=kept_s)
        threading.Thread(target=self._host, args=(cluster,), name=NAME, daemon=True).start()

    def keep(self, version: str, kept_s: float) -> bool:
        """A dispatcher of this version is there; False if it needs one made otherwise."""
        self._abandoned.keep()
        return (version, kept_s) == self._made_for

    def _host(self, cluster: RayCluster) -> None:
        try:
            asyncio.run(self._abandoned.run())
            asyncio.run(cluster.kill(NAME))  # by its name, for Ray restarts one that ends
        except BaseException:
            logger.exception("keeper ended", extra={"action": "keeper_end"})
        os._exit(1)


KeeperActor = ray.remote(KeeperProcess)


async def keep_workers(
    config: WorkerConfig,
    calls: RayCalls,
    *,
    kept_s: float,
    on_said: Callable[[], None] = lambda: None,
) -> None:
    """Say that a dispatcher is there, until cancelled. With 0 workers stay for good.

    `on_said` is called once no keeper takes them away from under it.
    """
    keeper: Any = None  # found once: the head may be away later
    while True:
        try:
            if not kept_s:
                await calls.run(_end_keeper)
                on_said()
                return
            keeper = keeper or await calls.run(partial(_find_or_make, config, kept_s))
            if not await answer(keeper.keep, VERSION, kept_s, timeout_s=_ANSWER_TIMEOUT_S):
                # The next is made only after the pause: it may be of another version again.
                await calls.run(partial(ray.kill, keeper))
                keeper = None
            on_said()
        except ActorUnavailable as error:
            keeper = None
            fields = {"action": "keep_workers", "error": str(error)}
            logger.warning("nobody keeps workers", extra=fields)
        await asyncio.sleep(max(kept_s / _ASKS, _LEAST_PAUSE_S))


def _end_keeper() -> None:
    """One of an application before, to which nobody would say that a dispatcher is there."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor == {"namespace": NAMESPACE, "name": NAME}:
            ray.kill(ray.get_actor(NAME, NAMESPACE))


def _find_or_make(config: WorkerConfig, kept_s: float) -> Any:
    return KeeperActor.options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        resources=CPU_NODE,
    ).remote(config, kept_s)
