"""The plain classes as Ray actors: their processes, and the handles that reach them."""

from __future__ import annotations

import asyncio
import logging
import os
import pkgutil
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.assembly import build_engine_host, build_job_runner
from actors.engine import AllDone, EngineDied, EngineHost, EngineMessage, Refused
from actors.job import JobRunner, RunOutcome
from actors.logs import set_up_logging
from events.records import Endpoint
from settings import Settings

logger = logging.getLogger(__name__)

NAMESPACE = "darkroom"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an actor runs, for whoever looks for it."""

    pid: int
    placement_group: str | None
    resources: Mapping[str, float]


def whereabouts() -> Whereabouts:
    context = ray.get_runtime_context()
    return Whereabouts(
        os.getpid(), context.get_placement_group_id(), context.get_assigned_resources()
    )


class EngineProcess:
    """One per worker: owns the device."""

    def __init__(self, settings: Settings, *, device: str) -> None:
        set_up_logging()
        self._host: EngineHost = build_engine_host(settings, device=device)

    async def run(
        self,
        job_id: str,
        attempt: int,
        prompt: Mapping[str, Any],
        first_index: Mapping[str, int] | None,
    ) -> AsyncGenerator[EngineMessage]:
        async for message in self._host.run(job_id, attempt, prompt, first_index):
            yield message

    async def cancel(self, job_id: str, attempt: int) -> None:
        await self._host.cancel(job_id, attempt)

    async def steps_done(self) -> int:
        return await self._host.steps_done()

    async def loaded(self) -> tuple[str, ...]:
        return await self._host.loaded()

    async def whereabouts(self) -> Whereabouts:
        return whereabouts()


class RemoteEngine:
    """An EngineProcess seen from another actor."""

    def __init__(self, handle: Any, *, answer_timeout_s: float = 30.0) -> None:
        self._handle = handle
        self._answer_timeout_s = answer_timeout_s

    async def run(
        self,
        job_id: str,
        attempt: int,
        prompt: Mapping[str, Any],
        first_index: Mapping[str, int] | None,
    ) -> AsyncGenerator[EngineMessage]:
        method: Any = self._handle.run.options(num_returns="streaming")
        ended = False
        try:
            async for reference in method.remote(job_id, attempt, prompt, first_index):
                message: EngineMessage = await reference
                ended = isinstance(message, AllDone | Refused)
                yield message
        except (RayActorError, RayTaskError) as error:
            ended = True
            raise EngineDied(f"The engine died: {_first_line(error)}") from error
        finally:
            if not ended:
                self._handle.cancel.remote(job_id, attempt)

    async def steps_done(self) -> int:
        try:
            answer = _answer(self._handle.steps_done.remote())
            return int(await asyncio.wait_for(answer, self._answer_timeout_s))
        except (RayActorError, RayTaskError, TimeoutError) as error:
            raise EngineDied(_first_line(error)) from error

    async def kill(self) -> None:
        """Ray starts it again."""
        await asyncio.to_thread(ray.kill, self._handle, no_restart=False)


class JobProcess:
    """One slot of a worker: a Ray actor that is one job's own for as long as the job runs."""

    def __init__(self, settings: Settings, endpoint: Endpoint, engine: Any) -> None:
        """`engine`: handle of this worker's EngineProcess."""
        set_up_logging()
        self._settings = settings
        self._endpoint = endpoint
        self._engine = RemoteEngine(engine)
        self._runner: JobRunner | None = None
        self._job_id: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs_run = 0

    async def ready(self) -> str:
        """Connected; the name under which this actor writes facts."""
        if self._runner is None:
            self._runner = await build_job_runner(
                self._settings, self._endpoint, actor=actor_name(), engine=self._engine
            )
        return actor_name()

    async def run(self, job_id: str, ack_subject: str) -> RunOutcome:
        await self.ready()
        assert self._runner is not None
        if self._job_id is not None:
            return RunOutcome.LOST  # one job at a time: two under one name could not be fenced
        self._job_id, self._jobs_run = job_id, self._jobs_run + 1
        self._idle.clear()
        try:
            return await self._runner.run(job_id, ack_subject)
        finally:
            self._job_id = None
            self._idle.set()

    async def take_delivery(self, job_id: str, ack_subject: str) -> bool:
        """See `JobRunner.take_delivery`."""
        return self._runner is not None and self._runner.take_delivery(job_id, ack_subject)

    async def state(self) -> tuple[str | None, int]:
        """The job it runs, and how many it was given."""
        return self._job_id, self._jobs_run

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def whereabouts(self) -> Whereabouts:
        return whereabouts()


class RoleProcess:
    """A role in a process of its own.

    The constructor only begins: it connects to nothing and raises nothing, for Serve replaces no
    replica while an actor of its deployment fails to start. A loop that ends, for whatever
    reason, ends the process, and Serve makes a new one.
    """

    def __init__(self, main: str, settings: Settings) -> None:
        """`main`: import path of a coroutine function of the settings, `module:name`."""
        set_up_logging()
        self._main = main
        threading.Thread(target=self._host, args=(settings,), name=main, daemon=True).start()

    def _host(self, settings: Settings) -> None:
        try:
            asyncio.run(pkgutil.resolve_name(self._main)(settings))
        except BaseException:
            logger.exception("role ended", extra={"action": "role_end", "role": self._main})
        os._exit(1)

    def whereabouts(self) -> Whereabouts:
        return whereabouts()


def actor_name() -> str:
    """Of the actor this runs in: its name, and the id of this incarnation."""
    context = ray.get_runtime_context()
    return f"{context.get_actor_name()}@{context.get_actor_id()}"


async def _answer(reference: Any) -> Any:
    return await reference


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


EngineActor = ray.remote(EngineProcess)
JobActor = ray.remote(JobProcess)
RoleActor = ray.remote(RoleProcess)
