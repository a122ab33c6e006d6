"""JobProcess: the job actor, a Ray actor that runs one job after another on a worker.

Each event is appended at an expected sequence, and `Started` contains the name of the actor. An
actor can lose a job, for example if its process is stopped for longer than the lease. The next
append of this actor then fails. The actor reads the events, finds the name of another actor in
`Started`, and stops without an acknowledgement of the entry.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

import ray
from pydantic import SecretStr

from actors.connections import connect
from actors.job_error import fail_job_and_ack
from actors.location import Location, location
from actors.worker.attempt import Attempt, AttemptLimits, ReportProgress
from actors.worker.config import WorkerConfig
from actors.worker.engine_process import (
    ENGINE_ANSWER_TIMEOUT_S,
    MODEL_LOAD_TIMEOUT_S,
    RemoteEngine,
)
from actors.worker.run_mark import remove_stale_marks
from engine.interface import Limits, ModelsFolder
from events.bus.progress import ProgressReporter
from events.bus.queues import JobQueue, QueueEntry
from events.decisions import Start
from events.errors import JobUnreadable, ServiceError
from events.job import Job
from events.log import JobWriter, RetryingLog, utc_now
from events.types import Completed
from settings.constant import constant
from settings.settings import forget_secrets
from storage.images import ImageStore
from telemetry.logs import job_log_fields, set_up_logging
from telemetry.spans import TraceIds

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS_TOTAL = constant("MAX_ATTEMPTS_TOTAL", 100)
"""Largest number of failed attempts at a job, not counting attempts as a bystander. The number is
large, because a job that ends its engine also ends attempts at other jobs.
"""


class RunOutcome(StrEnum):
    COMPLETED = "completed"
    """All images are stored, and the entry is acknowledged."""
    ENDED = "ended"
    """The job failed, was cancelled or is unknown, and the entry is acknowledged."""
    RETRY = "retry"
    """The attempt failed, and the entry is put back on the queue."""
    LOST = "lost"
    """Another actor has the job, or only a later version can read the job. The entry is neither
    acknowledged nor put back on the queue.
    """
    BUSY = "busy"
    """The actor runs another job or has retired, and did nothing."""


class JobRunner:
    """The part of a job actor that needs neither Ray nor a connection of its own."""

    def __init__(
        self,
        *,
        actor: str,
        log: RetryingLog,
        queue: JobQueue,
        images: ImageStore,
        engine: RemoteEngine,
        models: ModelsFolder | None,
        graph_limits: Limits,
        report_progress: ReportProgress,
        limits: AttemptLimits,
        max_attempts: int,
        max_attempts_total: int = _MAX_ATTEMPTS_TOTAL,
        now: Callable[[], datetime] = utc_now,
        is_traced: bool = False,
        has_comfyui: bool = False,
    ) -> None:
        """`actor` is the name in `Started`. For `models` see `Attempt`. `has_comfyui` says whether
        the engine is a `ComfyUIEngine`.
        """
        self._actor = actor
        self._log = log
        self._writer = JobWriter(log)
        self._queue = queue
        self._images = images
        self._engine = engine
        self._models = models
        self._graph_limits = graph_limits
        self._report_progress = report_progress
        self._limits = limits
        self._max_attempts = max_attempts
        self._max_attempts_total = max_attempts_total
        self._now = now
        self._is_traced = is_traced
        self._has_comfyui = has_comfyui
        self._job_id: str | None = None
        self._attempt: Attempt | None = None
        self._jobs_run = 0
        self._is_retired = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(
        self,
        job_id: str,
        ack_subject: str,
        job_as_read: Job | None = None,
        *,
        after_attempts: int | None = None,
        given_at: datetime | None = None,
        extra_data: SecretStr | None = None,
    ) -> RunOutcome:
        """Run the job of the queue entry with this `ack_subject`.

        `job_as_read` is the job that the dispatcher read from the log. If this job is stale, the
        expected sequence of `Started` conflicts, and the job is read again. The dispatcher gave the
        job to this actor at `given_at`, after `after_attempts` earlier attempts. It has decrypted
        `Submitted.sealed_extra_data` to `extra_data`.

        Raises ServiceError. `fail_job_and_ack` handles JobUnreadable and all other errors.
        """
        if self._job_id is not None or self._is_retired:
            return RunOutcome.BUSY  # Two jobs at once would write events under the same name.
        entry = self._queue.entry(job_id, ack_subject)
        self._job_id, self._jobs_run = job_id, self._jobs_run + 1
        self._idle.clear()
        try:
            job = job_as_read or await self._writer.load(job_id)
            if job is None:
                await entry.ack()
                return RunOutcome.ENDED
            server = await self._engine.comfyui_server() if self._has_comfyui else None
            command = Start(
                self._actor,
                max_attempts=self._max_attempts,
                max_attempts_total=self._max_attempts_total,
                now=self._now(),
                after_attempts=after_attempts,
                given_at=given_at if self._is_traced else None,
                comfyui=server,
            )
            outcome = await self._writer.execute(command, job)
            job = outcome.job or job
            with job_log_fields(job):
                if job.end is None:
                    if not outcome.added:
                        return RunOutcome.LOST  # `Started` was not stored: another actor has it.
                    job, entry = await self._run_attempt(job, entry, extra_data)
                return await self._ack_or_nak(job, entry)
        except Exception as error:
            if isinstance(error, ServiceError) and not isinstance(error, JobUnreadable):
                raise
            is_done = await fail_job_and_ack(entry, error, writer=self._writer, action="run")
            return RunOutcome.ENDED if is_done else RunOutcome.LOST
        finally:
            self._job_id = None
            self._idle.set()

    async def take_delivery(self, job_id: str, ack_subject: str) -> bool:
        """Use this new delivery of the entry from now on. Returns whether this actor runs the
        job.
        """
        if self._attempt is None or self._job_id != job_id:
            return False
        self._attempt.entry = self._queue.entry(job_id, ack_subject)
        return True

    async def state(self) -> tuple[str | None, int]:
        """Return the id of the running job, and the number of jobs that this actor was given."""
        return self._job_id, self._jobs_run

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def retire(self) -> bool:
        """Refuse all further jobs. Returns False, and refuses nothing, if a job runs."""
        self._is_retired = self._is_retired or self._job_id is None
        return self._is_retired

    async def _run_attempt(
        self, job: Job, entry: QueueEntry, extra_data: SecretStr | None
    ) -> tuple[Job, QueueEntry]:
        fields = {"action": "start", "job_id": job.id, "attempt": job.attempts}
        logger.info("attempt started", extra=fields)
        self._attempt = attempt = Attempt(
            job,
            entry,
            actor=self._actor,
            log=self._log,
            engine=self._engine,
            images=self._images,
            models=self._models,
            graph_limits=self._graph_limits,
            report_progress=self._report_progress,
            limits=self._limits,
            now=self._now,
            span_link=TraceIds.of(job).attempt_link(job.attempts) if self._is_traced else "",
            extra_data=extra_data,
        )
        try:
            return await attempt.run(), attempt.entry
        finally:
            self._attempt = None

    async def _ack_or_nak(self, job: Job, entry: QueueEntry) -> RunOutcome:
        """Acknowledge the entry of an ended job. If this actor's attempt failed without ending the
        job, put the entry back on the queue.
        """
        if job.end is not None:
            await entry.ack()
            fields = {"action": "end", "job_id": job.id, "end": type(job.end).__name__}
            logger.info("job ended", extra=fields)
            is_completed = isinstance(job.end, Completed)
            return RunOutcome.COMPLETED if is_completed else RunOutcome.ENDED
        if job.actor == self._actor:
            await entry.nak()
            return RunOutcome.RETRY
        return RunOutcome.LOST


class JobProcess(JobRunner):
    """The job actor of one slot, with its own connection to NATS."""

    def __init__(self, config: WorkerConfig, engines: tuple[str, ...]) -> None:
        """`engines` are the names of the engine processes of this worker."""
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        remove_stale_marks()
        # The name includes Ray's id of the actor, so an actor and its replacement differ by name.
        context = ray.get_runtime_context()
        name = f"{context.get_actor_name()}@{context.get_actor_id()}"
        self._connections = connect(config.log, name)
        self._was_connected = False
        self._finding: asyncio.Task[None] | None = None
        super().__init__(
            actor=name,
            log=RetryingLog(self._connections.log),
            queue=self._connections.queue,
            images=ImageStore(config.images_url),
            engine=RemoteEngine(*engines),
            models=_models_of(config),
            graph_limits=Limits(**config.endpoint.limits(config.graph)),
            report_progress=ProgressReporter(self._connections.bus).report,
            limits=AttemptLimits(start_s=MODEL_LOAD_TIMEOUT_S, silence_s=ENGINE_ANSWER_TIMEOUT_S),
            max_attempts=config.workers.max_attempts,
            is_traced=config.is_traced,
            has_comfyui=config.endpoint.engine == "comfyui",
        )

    async def ready(self) -> str:
        """Wait until NATS was connected once. Returns the name under which this actor writes.

        Later calls do not wait, because a dispatcher that finds a busy actor must get its answer
        also while NATS is not available.
        """
        if not self._was_connected:
            await self._connections.bus.wait_connected()
            self._was_connected = True
        if self._finding is None:
            self._finding = asyncio.create_task(self._engine.find())
        return self._actor

    async def location(self) -> Location:
        return location()


def _models_of(config: WorkerConfig) -> ModelsFolder | None:
    if config.endpoint.engine == "comfyui":
        return None
    # The folder is read again for each job, because a job may use a new file.
    return ModelsFolder(config.models_dir, comfyui_dir=config.comfyui_dir, ttl_s=0)


JobProcessActor = ray.remote(JobProcess)
