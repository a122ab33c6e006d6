"""Job runners over a log and a queue, in memory by default, and images in a folder."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from actors.worker.attempt import AttemptLimits
from actors.worker.job_actor import JobRunner, RunOutcome
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from events.bus.queues import JobQueue, QueueEntry
from events.decisions import Command, Submit
from events.ids import new_id
from events.job import Job
from events.job_progress import JobProgress
from events.log import EventLog, JobWriter
from events.types import Event
from storage.images import ImageStore
from tests.support.events import LATER, job_in, submitted
from tests.support.failing_log import FailingLog
from tests.support.memory.queues import MemoryJobQueue
from tests.support.worker import LANE, ScriptedEngine, pictures

LIMITS = AttemptLimits(silence_s=30, longest_machine_pause_s=0.05)


class CountingLog(FailingLog):
    """Counts looks at the last event, too."""

    looks = 0

    async def last(self, job_id: str) -> Event | None:
        self.looks += 1
        return await super().last(job_id)


class RunnersBench:
    """Jobs, and runners that take one entry each."""

    def __init__(self, folder: Path, *, log: Any = None, queue: JobQueue | None = None) -> None:
        self.log = log or CountingLog()
        self.writer = JobWriter(self.log)
        self.queue = queue or MemoryJobQueue()
        self.images = ImageStore((folder / "images").as_uri())
        self.models = ModelsFolder(folder / "models")

    @property
    def runners_log(self) -> EventLog:
        return self.log

    async def submit(self, **changes: Any) -> Job:
        """Submit a job and put it on the queue."""
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted(lane=LANE, **changes)))
        await self.queue.add("default", LANE, job_id, deadline=LATER)
        assert outcome.job is not None
        return outcome.job

    async def job(self, job_id: str) -> Job:
        return await job_in(self.log, job_id)

    async def execute(self, job: Job, *commands: Command) -> Job:
        for command in commands:
            after = (await self.writer.execute(command, job)).job
            assert after is not None
            job = after
        return job

    async def entry(self) -> QueueEntry:
        async with self.queue.consume("default", LANE) as lane:
            [entry] = await lane.next(most=1, timeout_s=5)
            return entry

    async def run(
        self,
        engine: ScriptedEngine | None = None,
        *,
        job: Job | None = None,
        after_attempts: int | None = None,
        given_at: datetime | None = None,
        **options: Any,
    ) -> RunOutcome:
        """Run the job of the next entry on an engine, by default one that makes a picture.

        `job`, `after_attempts` and `given_at` are what a dispatcher says of it.
        """
        runner = self.runner(engine or ScriptedEngine(pictures(1)), **options)
        entry = await self.entry()
        return await runner.run(
            entry.job_id, entry.ack_subject, job, after_attempts=after_attempts, given_at=given_at
        )

    def runner(
        self,
        engine: ScriptedEngine,
        *,
        actor: str | None = None,
        limits: AttemptLimits = LIMITS,
        max_attempts: int = 3,
        lease_renew_s: float = 0.01,
        is_traced: bool = False,
        has_comfyui: bool = False,
    ) -> JobRunner:
        async def report(_job_id: str, _progress: JobProgress) -> None:
            pass

        return JobRunner(
            actor=actor or new_id(),
            log=self.runners_log,
            queue=self.queue,
            images=self.images,
            engine=engine,
            models=self.models,
            graph_limits=Limits(),
            report_progress=report,
            limits=replace(limits, lease_renew_s=lease_renew_s),
            max_attempts=max_attempts,
            max_attempts_total=9,
            is_traced=is_traced,
            has_comfyui=has_comfyui,
        )
