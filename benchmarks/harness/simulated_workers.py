"""Simulated workers for the dispatcher, which need no device.

They run in the process of the dispatcher, so its figures include a constant cost for each job.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pydantic import SecretStr

from actors.scheduler.names import slot_number
from actors.worker.engine_process import EngineState
from actors.worker.job_actor import RunOutcome
from engine.activity import ActivityKind
from events.bus.queues import QueueEntry
from events.decisions import Complete, Start
from events.job import Job
from events.log import JobWriter, utc_now


class SimulatedJobActor:
    """Simulates each job for `job_s` seconds. The job then succeeds.

    With a `writer`, the events of the job are written. If `writer` is None, only the entry is
    acknowledged.
    """

    def __init__(self, name: str, writer: JobWriter | None, *, job_s: float) -> None:
        self._name = name
        self._writer = writer
        self._job_s = job_s
        self._job_id: str | None = None
        self._jobs_run = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def ready(self) -> str:
        return self._name

    async def state(self) -> tuple[str | None, int]:
        return self._job_id, self._jobs_run

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def run(
        self,
        entry: QueueEntry,
        job: Job,
        extra_data: SecretStr | None,  # noqa: ARG002 - no server reads it
    ) -> RunOutcome:
        self._job_id, self._jobs_run = entry.job_id, self._jobs_run + 1
        self._idle.clear()
        try:
            if self._writer is None:
                await asyncio.sleep(self._job_s)
            else:
                await self._write(job, self._writer)
            await entry.ack()
            return RunOutcome.COMPLETED
        finally:
            self._job_id = None
            self._idle.set()

    async def _write(self, job: Job, writer: JobWriter) -> None:
        start = Start(self._name, max_attempts=3, max_attempts_total=9, now=utc_now())
        outcome = await writer.execute(start, job)
        await asyncio.sleep(self._job_s)
        assert outcome.job is not None
        await writer.execute(Complete(self._name, images=0), outcome.job)

    async def retire(self) -> bool:
        return self._job_id is None

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:  # noqa: ARG002 - the protocol's signature
        return entry.job_id == self._job_id


class SimulatedEngine:
    """An engine that always answers at once."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    async def check(self) -> EngineState:
        return EngineState(ActivityKind.IDLE, 0.0, self._jobs)

    async def kill(self) -> None:
        raise AssertionError("it answers, so nobody kills it")

    async def cancel(self, job_id: str, attempt: int) -> bool | None:  # noqa: ARG002 - the protocol's signature
        return False


@dataclass
class SimulatedCluster:
    """A simulated cluster (see `actors.scheduler.cluster.Cluster`) with room for every worker or
    for none.
    """

    writer: JobWriter
    job_s: float
    jobs_per_worker: int
    has_room: bool = True
    writes: bool = True
    """Whether the events of a job are written."""
    _workers: dict[str, dict[str, SimulatedJobActor]] = field(default_factory=dict)
    """The job actors of each worker, by name."""

    async def place(self, worker: str) -> float:
        self._workers.setdefault(worker, {})
        if not self.has_room:
            await asyncio.Event().wait()
        return 0.0

    async def engine(self, worker: str) -> SimulatedEngine:  # noqa: ARG002 - the protocol's signature
        return SimulatedEngine(self.jobs_per_worker)

    async def slots(self, worker: str) -> list[int]:
        return [slot_number(name) for name in self._workers[worker]]

    async def job_actor(self, worker: str, name: str) -> SimulatedJobActor:
        writer = self.writer if self.writes else None
        fresh = SimulatedJobActor(name, writer, job_s=self.job_s)
        return self._workers[worker].setdefault(name, fresh)

    async def kill(self, name: str) -> None:
        for actors in self._workers.values():
            actors.pop(name, None)

    async def workers(self, prefix: str) -> list[str]:
        return sorted(name for name in self._workers if name.startswith(prefix))

    async def draining(self, prefix: str) -> list[str]:  # noqa: ARG002 - the protocol's signature
        return []

    async def is_idle(self, worker: str) -> bool:
        states = [await each.state() for each in self._workers[worker].values()]
        return all(job_id is None for job_id, _ in states)

    async def remove(self, worker: str, *, has_failed: bool = False) -> None:  # noqa: ARG002 - the protocol's signature
        self._workers.pop(worker, None)
