"""The service with all that it runs on, on one machine or as a cluster would have it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.records import Endpoint
from storage.images import ImageStore
from tests.faults.parts.cable import Cable
from tests.faults.parts.far_node import WORKER_CPUS, FarNode
from tests.faults.parts.inside.sitecustomize import FORBIDDEN
from tests.faults.parts.nats_servers import PASSWORD, NatsServers
from tests.faults.parts.processes import MARK, Processes, RayState
from tests.support.database import Postgres, postgres_server
from tests.support.polling import eventually
from tests.support.service import Service

FAR = "far"
"""The endpoint whose worker is on the second node."""
INSIDE = Path(__file__).parent / "inside"
_START_TIMEOUT_S = 120.0

# Short times, so that all that must end does so soon after the last fault.
SETTINGS = {
    "DARKROOM_CALLBACK_DENY_NETWORKS": f"{FORBIDDEN}/32",
    "DARKROOM_CALLBACK_TIMEOUT_S": "5",
    "DARKROOM_CALLBACK_BREAKER_OPEN_S": "2",
    "DARKROOM_CALLBACK_BREAKER_LONGEST_S": "8",
    "DARKROOM_CALLBACK_WITHHELD_S": "40",
    "DARKROOM_JANITOR_PERIOD_S": "5",
    "DARKROOM_SWEEP_GRACE_S": "30",
    "DARKROOM_UPKEEP_LEASE_S": "20",
    "DARKROOM_LOG_HOT_S": "20",
    "DARKROOM_JOB_TIMEOUT_S": "900",
    "DARKROOM_MAX_COST": "2000",
}


@dataclass(slots=True)
class Machine:
    """All of it, as `Parts`."""

    folder: Path
    """For all files of the run; its path is short, as those of sockets must be."""
    is_cluster: bool
    processes: Processes
    nats: NatsServers
    cable: Cable
    service: Service
    database_url: str
    postgres: Postgres | None
    far_node: FarNode | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        return self.service.environment

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ("default", FAR) if self.is_cluster else ("default",)

    def darkroom(self, *arguments: str) -> str:
        return self.service.command(*arguments).stdout

    @property
    def control(self) -> Path:
        return self.folder / "control"

    @property
    def temporary(self) -> Path:
        return self.folder / "t"

    @property
    def images(self) -> ImageStore:
        return ImageStore((self.service.data_dir / "images").as_uri())

    @property
    def nats_url(self) -> str:
        return f"nats://service:{PASSWORD}@127.0.0.1:{self.cable.port}"

    def ray(self) -> RayState:
        lines = reversed(self.service.output.splitlines())
        return RayState(next(line.split()[-1] for line in lines if line.startswith("Ray ")))

    async def lose_node(self, lasts_s: float) -> bool:
        node = self.far_node
        if node is None:
            return False
        killed = await asyncio.to_thread(node.kill)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            node.start()
        return killed > 0

    async def start_far_node(self) -> None:
        """A node that joins the first one, and an endpoint whose worker has room there alone."""
        lines = reversed(self.service.output.splitlines())
        address = next(line.split()[-1] for line in lines if line.startswith("Ray "))
        log = self.folder / "far-node.log"
        environment = {**self.service.environment, "RAY_AUTH_MODE": "token"}
        self.far_node = FarNode(address, environment=environment, log=log)
        self.far_node.start()
        await eventually(lambda: self.ray().nodes() == 2, within_s=_START_TIMEOUT_S)
        database = Database(self.database_url)
        try:
            await Endpoints(database).put(Endpoint(FAR, cpus=WORKER_CPUS, jobs_per_worker=3))
        finally:
            await database.close()


@asynccontextmanager
async def machine(*, is_cluster: bool) -> AsyncGenerator[Machine]:
    """Everything started; all of it is gone at the end, whatever happens meanwhile."""
    processes = Processes()
    async with AsyncExitStack() as stack:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("control", "t"):
            (folder / name).mkdir()
        stack.callback(processes.end)
        environment = {**os.environ, MARK: processes.mark}
        servers = NatsServers(
            folder / "nats", count=3 if is_cluster else 1, environment=environment
        )
        stack.callback(servers.stop)
        servers.start()
        await servers.wait_ready()
        cable = Cable(servers.ports)
        await cable.start()
        stack.push_async_callback(cable.close)
        postgres = stack.enter_context(postgres_server()) if is_cluster else None
        data = folder / "d"
        database_url = f"sqlite+aiosqlite:///{data / 'darkroom.sqlite3'}"
        if postgres is not None:
            database_url = await asyncio.to_thread(postgres.new_database)
        service = Service(data, **SETTINGS)
        one = Machine(
            folder, is_cluster, processes, servers, cable, service, database_url, postgres
        )
        service.environment |= _environment(one)
        stack.callback(service.close)
        await asyncio.to_thread(partial(service.start, timeout_s=_START_TIMEOUT_S))
        if is_cluster:
            await one.start_far_node()
        yield one


def short_folder() -> Path:
    """HAProxy's sockets lie in the data folder as long as its path is short."""
    while True:
        folder = Path(tempfile.gettempdir()) / f"df{secrets.token_hex(2)}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def _environment(machine: Machine) -> dict[str, str]:
    variables = {
        MARK: machine.processes.mark,
        "TMPDIR": str(machine.temporary),
        "FAULTS_CONTROL": str(machine.control),
        "PYTHONPATH": os.pathsep.join([str(INSIDE), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "DARKROOM_NATS_URL": machine.nats_url,
        "DARKROOM_LOG_REPLICAS": str(len(machine.nats.nodes)),
    }
    if machine.is_cluster:
        variables["DARKROOM_DATABASE_URL"] = machine.database_url
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"  # else no node may join
    return variables
