"""A cluster on three NATS servers and Postgres, as faults and checks use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from storage.images import ImageStore
from tests.cluster.parts.local_cluster import LocalCluster, local_cluster
from tests.faults.parts.machine import SETTINGS, environment_inside
from tests.faults.parts.parts import Parts, undone_after
from tests.faults.parts.processes import RayState
from tests.support.database import postgres_server

_LOG_SERVERS = 3


@dataclass(kw_only=True)
class ClusterParts(Parts):
    """A `LocalCluster` whose nodes start with the settings of `tests/faults`."""

    cluster: LocalCluster

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cluster.settings |= SETTINGS
        environment = self.cluster.environment
        environment |= environment_inside(self, environment["PYTHONPATH"])

    @property
    def environment(self) -> Mapping[str, str]:
        return {**self.cluster.environment, **self.cluster.settings}

    @property
    def database_url(self) -> str:
        return self.cluster.settings["DARKROOM_DATABASE_URL"]

    @property
    def images(self) -> ImageStore:
        return ImageStore(self.cluster.settings["DARKROOM_IMAGES_URL"])

    def ray(self) -> RayState:
        return self.cluster.ray()

    def darkroom(self, *arguments: str) -> str:
        return self.cluster.darkroom(*arguments)

    async def lose_node(self, lasts_s: float) -> bool:
        """Lose the node that has the worker."""
        (worker,) = self.cluster.workers()
        node = self.cluster.node_of(f"{worker}:engine")
        await asyncio.to_thread(node.kill)
        return await undone_after(lasts_s, partial(self.cluster.start_edge, node.name, cpus=1))


@asynccontextmanager
async def cluster_parts() -> AsyncGenerator[ClusterParts]:
    """A cluster without started nodes."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        database_url = await asyncio.to_thread(postgres.new_database)
        cluster = await stack.enter_async_context(
            local_cluster(log_servers=_LOG_SERVERS, database_url=database_url)
        )
        yield ClusterParts(
            folder=cluster.folder,
            processes=cluster.processes,
            nats=cluster.nats,
            postgres=postgres,
            cluster=cluster,
        )
