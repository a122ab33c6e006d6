"""The parts of the service that every job passes, each in its own process, without Ray.

So the cost of a job can be measured for each part. The dispatcher is the real dispatcher, with
simulated workers (`simulated_workers.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.harness.load import Caller
from benchmarks.harness.machine import Cpu, Family
from benchmarks.harness.many_jobs import OWNER, nats_server
from benchmarks.harness.part import JOB_S
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import Scope
from examples.service import ROOT, free_port
from serve_app.access.api_keys import mint
from settings.stores import StoreSettings

_READY_TIMEOUT_S = 180.0
_QUIET_CORES = 0.2
_QUIET_PERIOD_S = 0.5


@dataclass
class Parts:
    """The running parts of one installation."""

    nats_url: str
    database: Database
    port: int
    key: str
    families: dict[str, Family] = field(default_factory=dict)
    """The processes by part."""

    def caller(self) -> Caller:
        return Caller(self.port, self.key)

    def cpu_s(self) -> Cpu:
        return {
            (part, pid): cpu_s
            for part, family in self.families.items()
            for (_, pid), cpu_s in family.cpu_s().items()
        }

    def pss_bytes(self) -> dict[str, int]:
        return {part: sum(each.pss_bytes().values()) for part, each in self.families.items()}

    async def settle(self, *, timeout_s: float) -> None:
        """Wait until the parts are idle. Raises AssertionError after `timeout_s` seconds."""
        began, before = time.monotonic(), sum(self.cpu_s().values())
        while True:
            await asyncio.sleep(_QUIET_PERIOD_S)
            now = sum(self.cpu_s().values())
            if now - before < _QUIET_CORES * _QUIET_PERIOD_S:
                return
            assert time.monotonic() - began < timeout_s, "the parts do not come to rest"
            before = now


@asynccontextmanager
async def running_parts(
    settings: Mapping[str, str], *, job_s: float | None, sync: str
) -> AsyncGenerator[Parts]:
    """Run HTTP, router, projection and dispatcher until the end of the context.

    `job_s` is the duration of a simulated job in seconds; None if no worker has room. `sync` is the
    interval at which nats-server syncs its files.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="darkroom-")))
        (folder / "data").mkdir()
        server = nats_server(folder, sync=sync)
        nats_pid, nats_url = await stack.enter_async_context(server)
        port, log = free_port(), stack.enter_context((folder / "log").open("wb"))
        environment = _environment(folder, nats_url, settings)
        if job_s is not None:
            environment[JOB_S] = str(job_s)
        database = Database(StoreSettings(data_dir=folder / "data").effective_database_url)
        stack.push_async_callback(database.close)
        parts = Parts(nats_url, database, port, await _key(database))
        parts.families["nats-server"] = Family(nats_pid)
        for name in ("api", "router", "projection", "dispatcher"):
            arguments = ("-m", "benchmarks.harness.part", name, str(port))
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, env=environment, cwd=ROOT, stdout=log, stderr=log
            )
            stack.push_async_callback(_end, process)
            parts.families[name] = Family(process.pid)
        await _ready(parts, folder / "log")
        yield parts


def _environment(folder: Path, nats_url: str, settings: Mapping[str, str]) -> dict[str, str]:
    kept = {name: each for name, each in os.environ.items() if not name.startswith("DARKROOM_")}
    return {
        **kept,
        "DARKROOM_NATS_URL": nats_url,
        "DARKROOM_DATA_DIR": str(folder / "data"),
        "DARKROOM_MODELS_DIR": str(ROOT / "models"),
        "DARKROOM_SECRET": "a secret of sixteen",
        "DARKROOM_HTTP_REPLICAS": "1",
        "DARKROOM_OWNER_RATE_PER_S": "0",
        "DARKROOM_OWNER_MAX_OPEN_JOBS": "0",
        "DARKROOM_OWNER_MAX_LOG_BYTES": "0",
        "DARKROOM_OWNER_MAX_RESULT_BYTES": "0",
        "DARKROOM_LOG_MAX_BYTES": str(2**33),
        "DARKROOM_LOG_HOT_S": "86400",
        "DARKROOM_OWNER_SLOTS_KEPT_FREE": "0",
        **settings,
    }


async def _key(database: Database) -> str:
    await database.prepare()
    text, key = mint(OWNER, "benchmark", Scope, created_at=utc_now())
    await ApiKeys(database).add(key)
    return text


async def _ready(parts: Parts, log: Path) -> None:
    give_up_at = time.monotonic() + _READY_TIMEOUT_S
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                url = f"http://127.0.0.1:{parts.port}/health/ready"
                if (await client.get(url)).is_success:
                    break
            except httpx.TransportError:
                pass
            said = await asyncio.to_thread(log.read_text)
            assert time.monotonic() < give_up_at, said[-2000:]
            await asyncio.sleep(0.1)
    await parts.settle(timeout_s=_READY_TIMEOUT_S)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
