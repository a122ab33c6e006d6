"""A cluster in one process whose workers outlive the dispatchers, which are other processes.

They reach it over a socket, a connection for each call; a call goes on when its caller is gone.
"""

from __future__ import annotations

import asyncio
import pickle
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from actors.worker.engine_host import EngineState
from actors.worker.job import RunOutcome
from benchmarks.harness.simulated_workers import SimulatedCluster
from events.bus.bus import Bus
from events.bus.logs.job_log import job_log
from events.bus.queue_entries import JetStreamEntry
from events.decisions import Command, Complete
from events.job import Job
from events.log import JobWriter, Outcome
from events.queue import QueueEntry


class GatedWriter(JobWriter):
    """Jobs complete only while it is open."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(job_log(bus))
        self.open = asyncio.Event()
        self.open.set()

    async def execute(self, command: Command, job: Job) -> Outcome:
        if isinstance(command, Complete):
            await self.open.wait()
        return await super().execute(command, job)


class Workers:
    """The cluster, and how often each job was run on it."""

    def __init__(self, bus: Bus, *, job_s: float) -> None:
        self.writer = GatedWriter(bus)
        self.runs = Counter[str]()
        self._bus = bus
        self._cluster = SimulatedCluster(self.writer, job_s=job_s, jobs_per_worker=2)

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        # A caller may be killed at any moment, and what is asked ends with the test.
        with suppress(OSError, EOFError, pickle.UnpicklingError, asyncio.CancelledError):
            of, method, *arguments = pickle.loads(await reader.read())
            writer.write(pickle.dumps(await self._answer(of, method, arguments)))
            writer.write_eof()
            await writer.drain()
        writer.close()

    async def _answer(self, of: tuple[str, ...], method: str, arguments: list[Any]) -> Any:
        """`of`: a worker and the name of a job actor, a worker alone for its engine, or nothing."""
        if method == "run":
            job_id, token, job = arguments
            self.runs[job_id] += 1
            arguments = [JetStreamEntry(job_id, token, self._bus), job]
        target: Any = self._cluster
        if len(of) == 1:
            target = await self._cluster.engine(*of)
        elif of:
            target = await self._cluster.job_actor(*of)
        return await getattr(target, method)(*arguments)


class Far:
    """Something of the cluster, as a dispatcher reaches it."""

    def __init__(self, path: str, *of: str) -> None:
        self._path = path
        self._of = of

    async def _call(self, method: str, *arguments: Any) -> Any:
        """It is made, whether the caller waits for its answer or not."""
        return await asyncio.shield(asyncio.create_task(self._ask(method, *arguments)))

    async def _ask(self, method: str, *arguments: Any) -> Any:
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(pickle.dumps((self._of, method, *arguments)))
            writer.write_eof()
            return pickle.loads(await reader.read())
        finally:
            writer.close()


class FarJobActor(Far):
    """See `actors.dispatch.cluster.JobActor`."""

    async def ready(self) -> str:
        return str(await self._call("ready"))

    async def state(self) -> tuple[str | None, int]:
        job_id, jobs_run = await self._call("state")
        return job_id, jobs_run

    async def wait_idle(self) -> None:
        await self._call("wait_idle")

    async def run(self, entry: QueueEntry, job: Job) -> RunOutcome:
        return RunOutcome(await self._call("run", entry.job_id, entry.token, job))

    async def retire(self) -> bool:
        return bool(await self._call("retire"))

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        return entry.job_id == (await self.state())[0]


class FarEngine(Far):
    """See `actors.dispatch.cluster.EngineActor`."""

    async def check(self) -> EngineState:
        state: EngineState = await self._call("check")
        return state

    async def kill(self) -> None:
        await self._call("kill")

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        return bool(await self._call("cancel", job_id, attempt))


class FarCluster(Far):
    """See `actors.dispatch.cluster.Cluster`."""

    async def place(self, worker: str) -> float:
        return float(await self._call("place", worker))

    async def engine(self, worker: str) -> FarEngine:
        return FarEngine(self._path, worker)

    async def slots(self, worker: str) -> list[int]:
        return list(await self._call("slots", worker))

    async def job_actor(self, worker: str, name: str) -> FarJobActor:
        return FarJobActor(self._path, worker, name)

    async def kill(self, name: str) -> None:
        await self._call("kill", name)

    async def workers(self, prefix: str) -> list[str]:
        return list(await self._call("workers", prefix))

    async def draining(self, prefix: str) -> list[str]:
        return list(await self._call("draining", prefix))

    async def is_idle(self, worker: str) -> bool:
        return bool(await self._call("is_idle", worker))

    async def remove(self, worker: str, *, has_failed: bool = False) -> None:
        await self._call("remove", worker)
