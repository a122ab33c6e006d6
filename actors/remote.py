"""The plain classes as Ray actors: their processes, and the handles that reach them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pickle
import pkgutil
import sys
import threading
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

import ray

from actors.assembly import JobActorParts, build_engine_host, connect_job_actor
from actors.logs import set_up_logging
from actors.remote_engine import RemoteEngine
from actors.worker.config import EngineConfig, WorkerConfig
from actors.worker.device_turn import DeviceTurn
from actors.worker.engine_host import EngineDied, EngineHost, EngineState, Order
from actors.worker.job import RunOutcome
from actors.worker.process_memory import limit_memory, memory_bytes
from actors.worker.run_mark import remove_stale_marks
from actors.worker.watchdog import Watchdog, exit_later
from engine.reports import EngineEvent
from events.job import Job
from settings.settings import Settings, forget_secrets

logger = logging.getLogger(__name__)

T = TypeVar("T")

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_STANDBY_FROM_BYTES = 8 * 1024**3
_STANDBY_NICENESS = 10


@dataclass(frozen=True, slots=True)
class Location:
    """Where an actor runs, for whoever looks for it."""

    pid: int
    placement_group: str | None
    resources: Mapping[str, float]


def location() -> Location:
    context = ray.get_runtime_context()
    return Location(os.getpid(), context.get_placement_group_id(), context.get_assigned_resources())


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of the process that stands by, to which Ray gives none."""

    node: str
    visible: str

    @classmethod
    def of_this_process(cls) -> Devices:
        visible = os.environ.get(_VISIBLE_DEVICES, "")
        return cls(ray.get_runtime_context().get_node_id(), visible)

    def adopt(self) -> None:
        """Raises RuntimeError on another node, to which Ray moves a worker whose own is lost: there
        they are another worker's, if there are any.
        """
        if self.visible and self.node != ray.get_runtime_context().get_node_id():
            raise RuntimeError("The devices of this process are those of another node.")
        os.environ[_VISIBLE_DEVICES] = self.visible


class EngineProcess:
    """One of the two of a worker: either it owns the device, or it stands by to take it.

    It starts beside the constructor. Where it does not start, or turns out broken, the process ends
    and Ray makes a new one, which stands by; an error of the constructor is for good.
    """

    def __init__(
        self, config: EngineConfig, *, device: str, devices: Devices | None = None
    ) -> None:
        """`devices`: for a standby process; with those of another node it ends for good, and the
        dispatcher makes another one.
        """
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        if devices is not None:
            devices.adopt()
        limit_memory(config.engine.memory_bytes, device=device)
        self._config = config
        self._turn = DeviceTurn(str(ray.get_runtime_context().get_placement_group_id()))
        build = partial(_start_engine, config, device=device, turn=self._turn)
        self._starting = ThreadPoolExecutor(1, "engine-start").submit(_or_exit(build))

    async def has_device(self) -> bool:
        """Whether it is this one that runs jobs."""
        return self._turn.is_held

    async def standby_devices(self) -> Devices | None:
        """The devices of a process that stands by for this one; None if there is to be none."""
        return Devices.of_this_process() if _wants_standby(self._config) else None

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        """Raises EngineDied where it stands by; see `_host`."""
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
        """See `EngineHost.cancel`. One that stands by does not know."""
        return (await self._host()).cancel(job_id, attempt) if self._turn.is_held else None

    async def check(self) -> EngineState:
        """What it does, once it has started. Raises EngineDied if it is broken, or stands by."""
        return (await self._host()).check()

    async def location(self) -> Location:
        return location()

    async def _host(self) -> EngineHost:
        """Raises EngineDied where it stands by: it had the device before its process was restarted,
        and whoever found it then would wait for as long as the other one has it.
        """
        if not self._turn.is_held:
            raise EngineDied("It stands by since it was restarted.")
        return await asyncio.shield(asyncio.wrap_future(self._starting))


def _wants_standby(config: EngineConfig) -> bool:
    wanted = config.workers.standby_engine
    is_roomy = memory_bytes() >= _STANDBY_FROM_BYTES
    return sys.platform == "linux" and (is_roomy if wanted is None else wanted)


def _start_engine(config: EngineConfig, *, device: str, turn: DeviceTurn) -> EngineHost:
    if not turn.take():
        # In a thread of its own: what it starts, and it alone, stays behind those that work.
        threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
        turn.wait()
        logger.info("takes the device", extra={"action": "engine_takes_over"})
    exit_later(config.workers.model_load_timeout_s)  # a start may be stuck, too
    host = build_engine_host(config, device=device)
    Watchdog(lambda: host.activity, host.time_limits).start()
    return host


def _warm_up() -> None:
    """Import what an engine needs, which takes some seconds; no device is touched."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _STANDBY_NICENESS)
    for module in ("device", "context"):
        importlib.import_module(f"engine.diffusion.{module}")


def _or_exit(build: Callable[[], T]) -> Callable[[], T]:
    def run() -> T:
        try:
            return build()
        except BaseException:
            logger.exception("engine did not start", extra={"action": "engine_exit"})
            os._exit(1)

    return run


class JobProcess:
    """One slot of a worker: a Ray actor that is one job's own for as long as the job runs."""

    def __init__(self, config: WorkerConfig, engines: tuple[str, ...]) -> None:
        """`engines`: names of this worker's EngineProcesses."""
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        remove_stale_marks()
        self._config = config
        self._engine = RemoteEngine(*engines)
        self._parts: JobActorParts | None = None
        self._job_id: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs_run = 0
        self._is_retired = False
        self._finding: asyncio.Task[None] | None = None

    async def ready(self) -> str:
        """Connected; the name under which this actor writes events."""
        if self._parts is None:
            self._parts = await connect_job_actor(
                self._config, actor=actor_name(), engine=self._engine
            )
            self._finding = asyncio.create_task(self._engine.find())
        return actor_name()

    async def run(
        self,
        job_id: str,
        token: str,
        known: Job | None,
        *,
        after_attempts: int,
        given_at: datetime,
    ) -> RunOutcome:
        """Run a job; `token` is that of its queue entry, `known` the job as far as it is known.

        `after_attempts`: how many it had when it was handed out, at `given_at`.
        """
        await self.ready()
        assert self._parts is not None
        if self._job_id is not None or self._is_retired:
            return RunOutcome.BUSY  # one job at a time: two under one name could not be fenced
        self._job_id, self._jobs_run = job_id, self._jobs_run + 1
        self._idle.clear()
        try:
            entry = self._parts.queue.entry(job_id, token)
            run = partial(self._parts.runner.run, after_attempts=after_attempts, given_at=given_at)
            return await run(entry, known)
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

    async def retire(self) -> bool:
        """Take no further job; False where one runs."""
        self._is_retired = self._is_retired or self._job_id is None
        return self._is_retired

    async def location(self) -> Location:
        return location()


class RoleProcess:
    """A role in a process of its own.

    The constructor only begins: it connects to nothing and raises nothing, for Serve replaces no
    replica while an actor of its deployment fails to start. A loop that ends, for whatever
    reason, ends the process, and Serve makes a new one.
    """

    def __init__(self, main: str, settings: str, number: int = 1) -> None:
        """`main`: import path of a coroutine function of the settings, `module:name`. `number`:
        which of several that are alike, which it is given from the second on.

        `settings`: pickled, in base64. Where Serve is given a configuration file, as by a
        RayService, it makes a dict of every pydantic model among the arguments, and it tells them
        to whoever asks for the application's state, in JSON.
        """
        set_up_logging()
        self._main = main
        self._numbers = () if number == 1 else (number,)
        threading.Thread(target=self._host, args=(settings,), name=main, daemon=True).start()

    def _host(self, pickled: str) -> None:
        try:
            settings: Settings = pickle.loads(b64decode(pickled))
            set_up_logging(log_format=settings.telemetry.log_format)
            asyncio.run(pkgutil.resolve_name(self._main)(settings, *self._numbers))
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
