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
from tests.faults.parts.parts import Parts
from tests.faults.parts.processes import MARK, Processes, RayState
from tests.support.link import linked
from tests.support.service import Service

_INSIDE = Path(__file__).parent / "inside"
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


@dataclass(kw_only=True)
class Machine(Parts):
    service: Service

    @property
    def environment(self) -> Mapping[str, str]:
        return self.service.environment

    @property
    def database_url(self) -> str:
        return f"sqlite+aiosqlite:///{self.service.data_dir / 'darkroom.sqlite3'}"

    @property
    def images(self) -> ImageStore:
        return ImageStore((self.service.data_dir / "images").as_uri())

    def ray(self) -> RayState:
        return RayState(self.service.ray_address)

    def darkroom(self, *arguments: str) -> str:
        return self.service.command(*arguments).stdout


@asynccontextmanager
async def machine() -> AsyncGenerator[Machine]:
    """Start everything; it is removed at the end in any case."""
    processes = Processes()
    async with AsyncExitStack() as stack:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.end)
        environment = {**os.environ, MARK: processes.mark}
        servers = NatsServers(folder / "nats", count=1, environment=environment)
        stack.callback(servers.stop)
        servers.start()
        await servers.wait_ready()
        cable = await stack.enter_async_context(linked(*servers.ports()))
        service = Service(folder / "d", **SETTINGS)
        one = Machine(
            folder=folder, processes=processes, nats=servers, cable=cable, service=service
        )
        service.environment |= environment_inside(one, os.environ.get("PYTHONPATH", "")) | {
            MARK: processes.mark,
            "DARKROOM_NATS_URL": f"nats://service:{PASSWORD}@127.0.0.1:{cable.port}",
        }
        stack.callback(service.close)
        await asyncio.to_thread(partial(service.start, timeout_s=_START_TIMEOUT_S))
        yield one


def short_folder() -> Path:
    """Create a folder with a short path, because HAProxy's sockets are in the data folder."""
    while True:
        folder = Path(tempfile.gettempdir()) / f"df{secrets.token_hex(2)}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def environment_inside(parts: Parts, python_path: str) -> dict[str, str]:
    """Return the variables that let faults into the service's processes."""
    return {
        "TMPDIR": str(parts.temporary),
        "FAULTS_CONTROL": str(parts.control),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_INSIDE), python_path))),
    }
