"""The service with all its servers, on one machine."""

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

from storage.images import ImageStore
from tests.faults.parts.inside.sitecustomize import FORBIDDEN
from tests.faults.parts.nats_servers import PASSWORD, NatsServers
from tests.faults.parts.processes import MARK, Processes, RayState
from tests.support.link import Link, linked
from tests.support.service import Service

INSIDE = Path(__file__).parent / "inside"
_START_TIMEOUT_S = 120.0

# Short times, so that everything ends soon after the last fault.
SETTINGS = {
    "DARKROOM_CALLBACK_DENY_NETWORKS": f"{FORBIDDEN}/32",
    "DARKROOM_TEST_CALLBACK_TIMEOUT_S": "5",
    "DARKROOM_TEST_CALLBACK_BREAKER_OPEN_S": "2",
    "DARKROOM_TEST_CALLBACK_BREAKER_LONGEST_S": "8",
    "DARKROOM_TEST_CALLBACK_WITHHELD_S": "40",
    "DARKROOM_TEST_JANITOR_PERIOD_S": "5",
    "DARKROOM_TEST_SWEEP_GRACE_S": "30",
    "DARKROOM_TEST_UPKEEP_LEASE_S": "20",
    "DARKROOM_LOG_HOT_S": "20",
    "DARKROOM_JOB_TIMEOUT_S": "900",
    "DARKROOM_MAX_COST": "2000",
}


@dataclass(slots=True)
class Machine:
    """All parts of the machine, as `Parts`."""

    folder: Path
    """The folder for all files of the run; its path is short, as paths of sockets must be."""
    processes: Processes
    nats: NatsServers
    cable: Link
    service: Service
    postgres: None = None
    endpoints: tuple[str, ...] = ("default",)

    @property
    def environment(self) -> Mapping[str, str]:
        return self.service.environment

    @property
    def database_url(self) -> str:
        return f"sqlite+aiosqlite:///{self.service.data_dir / 'darkroom.sqlite3'}"

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
        """There is only one node."""
        return False


@asynccontextmanager
async def machine() -> AsyncGenerator[Machine]:
    """Start everything; it is removed at the end in any case."""
    processes = Processes()
    async with AsyncExitStack() as stack:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("control", "t"):
            (folder / name).mkdir()
        stack.callback(processes.end)
        environment = {**os.environ, MARK: processes.mark}
        servers = NatsServers(folder / "nats", count=1, environment=environment)
        stack.callback(servers.stop)
        servers.start()
        await servers.wait_ready()
        cable = await stack.enter_async_context(linked(*servers.ports()))
        one = Machine(folder, processes, servers, cable, Service(folder / "d", **SETTINGS))
        one.service.environment |= _environment(one)
        stack.callback(one.service.close)
        await asyncio.to_thread(partial(one.service.start, timeout_s=_START_TIMEOUT_S))
        yield one


def short_folder() -> Path:
    """Create a folder with a short path, because HAProxy's sockets are in the data folder."""
    while True:
        folder = Path(tempfile.gettempdir()) / f"df{secrets.token_hex(2)}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def _environment(machine: Machine) -> dict[str, str]:
    return {
        MARK: machine.processes.mark,
        "TMPDIR": str(machine.temporary),
        "FAULTS_CONTROL": str(machine.control),
        "PYTHONPATH": os.pathsep.join([str(INSIDE), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        "DARKROOM_NATS_URL": machine.nats_url,
    }
