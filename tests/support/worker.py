"""A scripted engine, and job runners that use it on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.worker.attempt import AttemptLimits
from actors.worker.engine_process import EngineDied, EngineState, RemoteEngine, RunRequest
from actors.worker.job_actor import JobRunner, RunOutcome
from actors.worker.run_mark import RunMarkWriter
from engine.activity import ActivityKind
from engine.interface import Limits, ModelsFolder
from engine.reports import EngineEvent, Finished, ImageReady, Progress
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.progress import ProgressReporter
from events.bus.queues import EntryConsumer, JobQueue, QueueEntry
from events.decisions import Submit
from events.ids import new_id
from events.job import Job
from events.log import EventLog, JobWriter, RetryingLog
from storage.images import ImageStore
from tests.support.events import LATER, submitted

LANE = 3
LEASE_S = 1.0
QUICK = AttemptLimits(silence_s=1, heartbeat_s=0.1, lease_renew_s=LEASE_S / 5)


class ScriptedEngine(RemoteEngine):
    """An engine that reports the items of its script and dies at None.

    A gated engine reports nothing until `advance` lets it. One that is not `active` works for other
    jobs. One that is `silent` does not answer.
    """

    def __init__(
        self,
        script: list[EngineEvent | None],
        *,
        gated: bool = False,
        active: bool = True,
        silent: bool = False,
    ) -> None:
        super().__init__()
        self.script = script
        self.active = active
        self.silent = silent
        self.state = EngineState(ActivityKind.CALL, 0.0, jobs=4)
        self.requests: list[RunRequest] = []
        self.kills = 0
        self._gate = asyncio.Semaphore(0) if gated else None

    def advance(self, events: int = 1) -> None:
        assert self._gate is not None
        for _ in range(events):
            self._gate.release()

    async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
        self.requests.append(request)
        with closing(RunMarkWriter(request.mark)) as mark:
            mark.set_active(self.active)
        for event in self.script:
            if self._gate is not None:
                await self._gate.acquire()
            if event is None:
                raise EngineDied("The engine died: killed")
            yield event

    async def check(self) -> EngineState:
        if self.silent:
            raise EngineDied("no answer in time")
        return self.state

    async def kill(self) -> None:
        self.kills += 1


def picture(index: int = 0, *, seed: int = 7) -> ImageReady:
    return ImageReady(index, "9", np.full((8, 8, 3), 40 * index, np.uint8), seed)


def pictures(count: int) -> list[EngineEvent | None]:
    """Return the script of a successful job."""
    return [Progress(1, 1), *(picture(index) for index in range(count)), Finished(count)]


def job_runner(
    engine: ScriptedEngine,
    *,
    log: EventLog,
    images: ImageStore,
    queue: JobQueue,
    bus: Bus,
    actor: str = "a",
    limits: AttemptLimits = QUICK,
) -> JobRunner:
    return JobRunner(
        actor=actor,
        log=RetryingLog(log, longest_pause_s=0.2),
        queue=queue,
        images=images,
        engine=engine,
        models=ModelsFolder(Path("none")),
        graph_limits=Limits(),
        report_progress=ProgressReporter(bus).report,
        limits=limits,
        max_attempts=3,
        max_attempts_total=9,
    )


@dataclass
class Bench:
    """A queue with one lane, and job runners that read it."""

    bus: Bus
    log: JetStreamLog
    writer: JobWriter
    queue: JobQueue
    lane: EntryConsumer
    images: ImageStore

    async def submit(self, **changes: Any) -> str:
        job_id = new_id()
        await self.writer.submit(job_id, Submit(submitted(lane=LANE, **changes)))
        await self.queue.add("default", LANE, job_id, deadline=LATER)
        return job_id

    async def entry(self, *, within_s: float = 30.0) -> QueueEntry:
        entries = await self.lane.next(most=1, timeout_s=within_s)
        assert entries, "no entry was delivered"
        return entries[0]

    async def nothing_queued(self) -> bool:
        return not await self.queue.job_ids()

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

    async def events(self, job_id: str) -> list[type]:
        return [type(event.data) for event in await self.log.read(job_id)]

    def runner(self, engine: ScriptedEngine, *, actor: str = "a") -> JobRunner:
        return job_runner(
            engine,
            log=self.log,
            images=self.images,
            queue=self.queue,
            bus=self.bus,
            actor=actor,
        )

    async def run(self, engine: ScriptedEngine, *, actor: str = "a") -> RunOutcome:
        """Run the next entry."""
        entry = await self.entry()
        return await self.runner(engine, actor=actor).run(entry.job_id, entry.ack_subject)
