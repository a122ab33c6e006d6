"""The plain classes as Ray actors: their processes, and the handles that reach them."""

from __future__ import annotations

import asyncio
import logging
import os
import pkgutil
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from actors.actor_deaths import first_line, was_taken_away
from actors.assembly import JobActorParts, build_engine_host, connect_job_actor
from actors.logs import set_up_logging
from actors.worker.config import EngineConfig, WorkerConfig
from actors.worker.engine_host import EngineDied, EngineHost, EngineState, EngineTaken, Order
from actors.worker.job import RunOutcome
from actors.worker.process_memory import limit_memory
from actors.worker.watchdog import Watchdog, exit_later
from engine.reports import EngineEvent, Errored, Finished
from settings.settings import Settings, forget_secrets

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAMESPACE = "darkroom"
_EVENTS_AHEAD = 4
"""How many events of a run an engine hands over before the job has dealt with them."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where an actor runs, for whoever looks for it."""

    pid: int
    placement_group: str | None
    resources: Mapping[str, float]


def location() -> Location:
    context = ray.get_runtime_context()
    return Location(os.getpid(), context.get_placement_group_id(), context.get_assigned_resources())


class EngineProcess:
    """One per worker: owns the device.

    The engine starts beside the constructor. Where it does not start, or turns out broken, the
    process ends and Ray makes a new one; an error of the constructor would be for good.
    """

    def __init__(self, config: EngineConfig, *, device: str) -> None:
        set_up_logging()
        forget_secrets(os.environ)
        limit_memory(config.engine.memory_bytes, device=device)
        build = partial(_start_engine, config, device=device)
        self._starting = ThreadPoolExecutor(1, "engine-start").submit(_or_exit(build))

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        host = await self._host()
        try:
            async with aclosing(host.run(order)) as events:
                async for event in events:
                    yield event
        finally:
            if host.is_broken:
                logger.error("engine is broken", extra={"action": "engine_exit"})
                os._exit(1)

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        """See `EngineHost.cancel`."""
        return (await self._host()).cancel(job_id, attempt)

    async def check(self) -> EngineState:
        """What it does, once it has started. Raises EngineDied if it is broken."""
        return (await self._host()).check()

    async def location(self) -> Location:
        return location()

    async def _host(self) -> EngineHost:
        return await asyncio.shield(asyncio.wrap_future(self._starting))


def _start_engine(config: EngineConfig, *, device: str) -> EngineHost:
    exit_later(config.workers.model_load_timeout_s)  # a start may be stuck, too
    host = build_engine_host(config, device=device)
    Watchdog(lambda: host.activity, host.time_limits).start()
    return host


def _or_exit(build: Callable[[], T]) -> Callable[[], T]:
    def run() -> T:
        try:
            return build()
        except BaseException:
            logger.exception("engine did not start", extra={"action": "engine_exit"})
            os._exit(1)

    return run


class RemoteEngine:
    """An EngineProcess seen from another actor, found by its name."""

    def __init__(self, name: str, *, answer_timeout_s: float = 30.0) -> None:
        self._name = name
        self._answer_timeout_s = answer_timeout_s
        self._found: Any = None

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        handle = await self._handle()
        method: Any = handle.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=_EVENTS_AHEAD
        )
        ended = False
        try:
            async for reference in method.remote(order):
                event: EngineEvent = await reference
                ended = isinstance(event, Finished | Errored)
                yield event
        except RayError as error:
            ended = True
            raise self._died(error) from error
        finally:
            if not ended:
                handle.cancel.remote(order.job_id, order.attempt)

    async def check(self) -> EngineState:
        handle = await self._handle()
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                state: EngineState = await handle.check.remote()
                return state
        except (RayError, TimeoutError) as error:
            raise self._died(error) from error

    async def kill(self) -> None:
        """Ray starts it again, or finds it dead."""
        with suppress(EngineDied, RayError, ValueError):
            await asyncio.to_thread(ray.kill, await self._handle(), no_restart=False)

    async def _handle(self) -> Any:
        if self._found is None:
            try:
                self._found = await asyncio.to_thread(ray.get_actor, self._name, NAMESPACE)
            except (ValueError, RayError) as error:
                raise EngineDied("The engine is not there.") from error
        return self._found

    def _died(self, error: Exception) -> EngineDied:
        """Looked up anew the next time: it may come back as another actor of this name."""
        self._found = None
        was_taken = isinstance(error, RayError) and was_taken_away(error)
        died = EngineTaken if was_taken else EngineDied
        return died(f"The engine died: {first_line(error)}")


class JobProcess:
    """One slot of a worker: a Ray actor that is one job's own for as long as the job runs."""

    def __init__(self, config: WorkerConfig, engine: str) -> None:
        """`engine`: name of this worker's EngineProcess."""
        set_up_logging()
        forget_secrets(os.environ)
        self._config = config
        self._engine = RemoteEngine(engine)
        self._parts: JobActorParts | None = None
        self._job_id: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs_run = 0

    async def ready(self) -> str:
        """Connected; the name under which this actor writes events."""
        if self._parts is None:
            self._parts = await connect_job_actor(
                self._config, actor=actor_name(), engine=self._engine
            )
        return actor_name()

    async def run(self, job_id: str, token: str) -> RunOutcome:
        """Run a job; `token` is that of its queue entry."""
        await self.ready()
        assert self._parts is not None
        if self._job_id is not None:
            return RunOutcome.LOST  # one job at a time: two under one name could not be fenced
        self._job_id, self._jobs_run = job_id, self._jobs_run + 1
        self._idle.clear()
        try:
            return await self._parts.runner.run(self._parts.queue.entry(job_id, token))
        finally:
            self._job_id = None
            self._idle.set()

    async def take_delivery(self, job_id: str, token: str) -> bool:
        """See `JobRunner.take_delivery`."""
        parts = self._parts
        return parts is not None and parts.runner.take_delivery(parts.queue.entry(job_id, token))

    async def state(self) -> tuple[str | None, int]:
        """The job it runs, and how many it was given."""
        return self._job_id, self._jobs_run

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def location(self) -> Location:
        return location()


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

    def location(self) -> Location:
        return location()


def actor_name() -> str:
    """Of the actor this runs in: its name, and the id of this incarnation."""
    context = ray.get_runtime_context()
    return f"{context.get_actor_name()}@{context.get_actor_id()}"


EngineProcessActor = ray.remote(EngineProcess)
JobProcessActor = ray.remote(JobProcess)
RoleActor = ray.remote(RoleProcess)
