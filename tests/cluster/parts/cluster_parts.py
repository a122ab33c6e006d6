"""A cluster on three NATS servers and Postgres, as faults and checks use it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from storage.images import ImageStore
from tests.cluster.parts.local_cluster import LocalCluster, local_cluster
from tests.faults.parts.machine import INSIDE, SETTINGS
from tests.faults.parts.nats_servers import NatsServers
from tests.faults.parts.processes import Processes, RayState
from tests.support.database import Postgres, postgres_server

_LOG_SERVERS = 3


class ClusterParts:
    """A `LocalCluster` as `Parts`. Its nodes start with the settings of `tests/faults`."""

    cable = None
    endpoints: tuple[str, ...] = ("default",)

    def __init__(self, cluster: LocalCluster, postgres: Postgres | None) -> None:
        self.cluster = cluster
        self.postgres = postgres
        for folder in (self.control, self.temporary):
            folder.mkdir()
        cluster.settings |= SETTINGS
        path = os.pathsep.join([str(INSIDE), cluster.environment["PYTHONPATH"]])
        cluster.environment |= {
            "PYTHONPATH": path,
            "FAULTS_CONTROL": str(self.control),
            "TMPDIR": str(self.temporary),
        }

    @property
    def processes(self) -> Processes:
        return self.cluster.processes

    @property
    def nats(self) -> NatsServers:
        return self.cluster.nats

    @property
    def database_url(self) -> str:
        return self.cluster.settings["DARKROOM_DATABASE_URL"]

    @property
    def images(self) -> ImageStore:
        return ImageStore(self.cluster.settings["DARKROOM_IMAGES_URL"])

    @property
    def control(self) -> Path:
        return self.cluster.folder / "control"

    @property
    def temporary(self) -> Path:
        return self.cluster.folder / "t"

    @property
    def environment(self) -> Mapping[str, str]:
        return {**self.cluster.environment, **self.cluster.settings}

    def ray(self) -> RayState:
        return self.cluster.ray()

    def darkroom(self, *arguments: str) -> str:
        return self.cluster.darkroom(*arguments)

    async def lose_node(self, lasts_s: float) -> bool:
        """Lose the node that has the worker."""
        (worker,) = self.cluster.workers()
        node = self.cluster.node_of(f"{worker}:engine")
        await asyncio.to_thread(node.kill)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.cluster.start_edge(node.name, cpus=1)
        return True


@asynccontextmanager
async def cluster_parts() -> AsyncGenerator[ClusterParts]:
    """A cluster without started nodes."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        database_url = await asyncio.to_thread(postgres.new_database)
        cluster = await stack.enter_async_context(
            local_cluster(log_servers=_LOG_SERVERS, database_url=database_url)
        )
        yield ClusterParts(cluster, postgres)
