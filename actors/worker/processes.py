"""The Ray actors of a worker: engine processes and job actors."""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from actors.connections import connect
from actors.worker.attempt import AttemptLimits
from actors.worker.config import EngineConfig, WorkerConfig
from actors.worker.engine_host import (
    ENGINE_ANSWER_TIMEOUT_S,
    MODEL_LOAD_TIMEOUT_S,
    EngineClient,
    EngineDied,
    EngineHost,
    EngineState,
    EngineTaken,
    RunRequest,
)
from actors.worker.job_runner import JobRunner, RunOutcome
from actors.worker.plan import planner
from actors.worker.process_memory import job_actors_that_fit, limit_memory, memory_bytes
from actors.worker.run_mark import remove_stale_marks
from actors.worker.watchdog import TimeLimits, Watchdog, exit_later
from engine.interface import (
    Catalogue,
    DeviceOptions,
    Engine,
    EngineEvent,
    Errored,
    Finished,
    Limits,
    ModelsFolder,
    installed_nodes,
)
from events.job import Job
from events.log import RetryingLog, utc_now
from events.queue import JobQueue
from events.store.records import Endpoint
from settings.constant import constant
from settings.engine import EngineSettings
from settings.settings import forget_secrets
from storage.images import ImageStore
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)

T = TypeVar("T")


_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_STANDBY_ENGINE = constant("STANDBY_ENGINE", True)
"""Whether workers have a standby. A standby uses about 400 MB of memory. It uses no GPU until it
takes the device.
"""
_STANDBY_FROM_BYTES = 8 * 1024**3
"""Smallest memory of a machine, in bytes, with which its workers have a standby."""
_STANDBY_NICENESS = 10


@dataclass(frozen=True, slots=True)
class Location:
    """The process in which an actor runs. Tests and tools use it."""

    pid: int
    placement_group: str | None
    resources: Mapping[str, float]


def location() -> Location:
    context = ray.get_runtime_context()
    return Location(os.getpid(), context.get_placement_group_id(), context.get_assigned_resources())


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of an engine process. They are passed to its standby, because Ray assigns no
    devices to the standby.
    """

    node: str
    visible: str

    @classmethod
    def of_this_process(cls) -> Devices:
        visible = os.environ.get(_VISIBLE_DEVICES, "")
        return cls(ray.get_runtime_context().get_node_id(), visible)

    def adopt(self) -> None:
        """Make the devices visible to this process.

        Raises RuntimeError on another node, because the devices of that node may be in use by
        another worker. Ray moves a worker to another node if its node is lost.
        """
        if self.visible and self.node != ray.get_runtime_context().get_node_id():
            raise RuntimeError("The devices of this process belong to another node.")
        os.environ[_VISIBLE_DEVICES] = self.visible


_POLL_S = 0.05


class DeviceLock:
    """A lock that is released when the process that holds it ends in any way.

    The lock is the name of a socket in Linux's abstract namespace, so no file is left. Both engine
    processes are in one bundle of a placement group, and therefore on one machine. On systems other
    than Linux there is only one engine process.
    """

    def __init__(self, worker: str) -> None:
        """`worker` is a name that no other worker on the machine has, of this or another
        cluster.
        """
        self._address = f"\0darkroom-engine-{worker}"
        self._socket: socket.socket | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._socket is not None

    def take(self) -> bool:
        """Take the lock if it is free. Returns whether this process holds it now.

        Raises OSError if the socket cannot be bound, unless another process holds the lock.
        """
        if self._socket is None:
            taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                if sys.platform == "linux":
                    taken.bind(self._address)
            except OSError as error:
                taken.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._socket = taken
        return self.is_held

    def give_back(self) -> None:
        """Release the lock. The end of the process also releases it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def wait(self) -> None:
        """Wait until this process holds the lock. Raises OSError (see `take`)."""
        while not self.take():
            time.sleep(_POLL_S)


class EngineProcess:
    """One of the two engine processes of a worker: the process that has the device, or the standby.

    The standby has imported all modules of an engine and waits for the `DeviceLock`. When the
    process with the device ends, the standby takes the lock and starts the engine. So a new engine
    need not wait for the start of Python and the import of torch. Ray restarts the process that
    ended, and that process becomes the standby.

    The constructor starts the engine in a thread and does not wait for the start. If the engine
    does not start or is broken, the process ends, and Ray restarts it. Ray does not restart a
    process whose constructor has raised an error.
    """

    def __init__(
        self, config: EngineConfig, *, device: str, devices: Devices | None = None
    ) -> None:
        """`devices` is set only for a standby.

        The constructor of a standby raises RuntimeError on another node than that of `devices`. The
        dispatcher then makes another standby.
        """
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        if devices is not None:
            devices.adopt()
        limit_memory(config.engine.memory_bytes, device=device)
        self._device_lock = DeviceLock(str(ray.get_runtime_context().get_placement_group_id()))
        build = partial(_start_engine, config, device=device, turn=self._device_lock)
        self._starting = ThreadPoolExecutor(1, "engine-start").submit(_or_exit(build))

    async def has_device(self) -> bool:
        """Whether this process has the device, and so runs jobs."""
        return self._device_lock.is_held

    async def standby_devices(self) -> Devices | None:
        """The devices for the standby of this process, or None if this machine gets no standby."""
        return Devices.of_this_process() if _wants_standby() else None

    async def run(self, order: RunRequest) -> AsyncGenerator[EngineEvent]:
        """Run an order. Raises EngineDied if this process is the standby."""
        host = await self._host()
        try:
            async with aclosing(host.run(order)) as events:
                async for event in events:
                    yield event
        finally:
            if host.is_broken:
                logger.error("the engine is broken", extra={"action": "engine_exit"})
                os._exit(1)

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        """See `EngineHost.cancel`. Returns None if this process is the standby."""
        return (await self._host()).cancel(job_id, attempt) if self._device_lock.is_held else None

    async def check(self) -> EngineState:
        """Wait until the engine has started. Returns its state.

        Raises EngineDied if the engine is broken, or if this process is the standby.
        """
        return (await self._host()).check()

    async def location(self) -> Location:
        return location()

    async def _host(self) -> EngineHost:
        """Return the engine after its start. Raises EngineDied if this process is the standby.

        A caller may have found this process before a restart, when the process had the device.
        Without this error such a caller would wait until the other process ends.
        """
        if not self._device_lock.is_held:
            raise EngineDied("The process is the standby since it was restarted.")
        return await asyncio.shield(asyncio.wrap_future(self._starting))


def _wants_standby() -> bool:
    return _STANDBY_ENGINE and sys.platform == "linux" and memory_bytes() >= _STANDBY_FROM_BYTES


def _start_engine(config: EngineConfig, *, device: str, turn: DeviceLock) -> EngineHost:
    if not turn.take():
        # The warm-up has its own thread with a low priority, which only threads of the warm-up
        # inherit.
        threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
        turn.wait()
        logger.info("the standby takes the device", extra={"action": "engine_takes_over"})
    exit_later(MODEL_LOAD_TIMEOUT_S)  # This call ends the process if the start hangs.
    host = build_engine_host(config, device=device)
    Watchdog(lambda: host.activity, host.time_limits).start()
    return host


def _warm_up() -> None:
    """Import the modules of an engine. This takes some seconds and uses no device."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _STANDBY_NICENESS)
    for module in ("device", "context"):
        importlib.import_module(f"engine.diffusion.{module}")


def _or_exit(build: Callable[[], T]) -> Callable[[], T]:
    def run() -> T:
        try:
            return build()
        except BaseException:
            logger.exception("the engine did not start", extra={"action": "engine_exit"})
            os._exit(1)

    return run


_PROGRESS_PERIOD_S = constant("PROGRESS_PERIOD_S", 0.25)
"""Shortest time in seconds between two progress messages of a job. Each message needs CPU time in
three processes.
"""
_STEP_SEED_OFFSET = constant("STEP_SEED_OFFSET", 1)
"""See `DeviceOptions`."""
_EXCLUSIVE_TIMEOUT_S = constant("EXCLUSIVE_TIMEOUT_S", 600.0)
"""Seconds for which a suspect runs alone on an engine. After this time other jobs may join. If a
job has joined, the suspect is not blamed for an end of the engine.
"""


def _models(config: EngineConfig | WorkerConfig) -> ModelsFolder:
    """A models folder that is read again for each job, because a job may use a file that was added
    just before.
    """
    return ModelsFolder(config.models_dir, ttl_s=0)


def build_engine_host(config: EngineConfig, *, device: str) -> EngineHost:
    models = _models(config)
    limits = Limits(**config.endpoint.limits(config.graph))
    more_nodes = installed_nodes()
    engine = Engine(
        models=models,
        options=device_options(config.engine, config.endpoint, device=device),
        exclusive_s=_EXCLUSIVE_TIMEOUT_S,
        progress_period_s=_PROGRESS_PERIOD_S,
        limits=limits,
        more_nodes=more_nodes,
    )
    engine.start()
    time_limits = TimeLimits(step_s=config.workers.step_timeout_s, load_s=MODEL_LOAD_TIMEOUT_S)
    return EngineHost(
        engine=engine,
        catalogue=Catalogue(models, more_nodes),
        time_limits=time_limits,
        most_jobs=job_actors_that_fit(),
    )


def device_options(settings: EngineSettings, endpoint: Endpoint, *, device: str) -> DeviceOptions:
    on_cpu = device == "cpu"
    return DeviceOptions(
        device=device,
        threads=os.cpu_count(),
        cache_bytes=settings.model_cache_bytes or (memory_bytes() // 3 if on_cpu else None),
        gpu_share=min(1.0, endpoint.gpus or 1.0),
        step_seed_offset=_STEP_SEED_OFFSET,
        precision=endpoint.precision or "auto",
        channels_last=bool(endpoint.channels_last),
        compiler=endpoint.compiler,
    )


@dataclass(frozen=True, slots=True)
class JobActorParts:
    runner: JobRunner
    queue: JobQueue


async def connect_job_actor(
    config: WorkerConfig, *, actor: str, engine: EngineClient
) -> JobActorParts:
    """Connect a job actor. Returns when the connection is made."""
    connections = connect(config.log, actor)
    graph_limits = Limits(**config.endpoint.limits(config.graph))
    runner = JobRunner(
        actor=actor,
        log=RetryingLog(connections.log),
        images=ImageStore(config.images_url),
        engine=engine,
        plan=planner(_models(config), graph_limits),
        report_progress=connections.report_progress,
        limits=AttemptLimits(
            start_s=MODEL_LOAD_TIMEOUT_S,
            silence_s=ENGINE_ANSWER_TIMEOUT_S,
        ),
        max_attempts=config.workers.max_attempts,
        now=utc_now,
        is_traced=config.is_traced,
    )
    await connections.connected()
    return JobActorParts(runner, connections.queue)


class JobProcess:
    """One slot of a worker: a Ray actor that runs one job at a time."""

    def __init__(self, config: WorkerConfig, engines: tuple[str, ...]) -> None:
        """`engines` are the names of the engine processes of this worker."""
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
        """Connect. Returns the name under which this actor writes events."""
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
        """Run the job of the queue entry with this `token`.

        `known` is the job as the dispatcher has read it, or None. The dispatcher gave the job to
        this actor at `given_at`. The job had had `after_attempts` attempts at that time.
        """
        await self.ready()
        assert self._parts is not None
        if self._job_id is not None or self._is_retired:
            return RunOutcome.BUSY  # Two jobs at once would write events under the same name.
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
        """The id of the running job or None, and the number of jobs that the actor was given."""
        return self._job_id, self._jobs_run

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def retire(self) -> bool:
        """Refuse all further jobs. Returns False, and refuses nothing, if a job runs."""
        self._is_retired = self._is_retired or self._job_id is None
        return self._is_retired

    async def location(self) -> Location:
        return location()


def actor_name() -> str:
    """The name of this actor, with Ray's id of the actor. So an actor that replaces another actor
    has another name.
    """
    context = ray.get_runtime_context()
    return f"{context.get_actor_name()}@{context.get_actor_id()}"


EngineProcessActor = ray.remote(EngineProcess)
JobProcessActor = ray.remote(JobProcess)


NAMESPACE = "darkroom"
"""Ray namespace of the actors of workers."""
_EVENTS_AHEAD = 4
"""Largest number of events of a run that the engine sends before the job actor has handled them."""


class RemoteEngine:
    """The engine of a worker, for its job actors. They find the process that has the device by its
    name.
    """

    def __init__(self, *names: str, answer_timeout_s: float = ENGINE_ANSWER_TIMEOUT_S) -> None:
        """`names` are the names of the two engine processes. One of these processes has the
        device.
        """
        self._names = names
        self._answer_timeout_s = answer_timeout_s
        self._found: Any = None
        self._last: Any = None
        """The process that had the device at the last look-up."""

    async def find(self) -> None:
        """Look up the process with the device, so that the first run need not wait for the
        look-up.
        """
        with suppress(EngineDied):
            await self._handle()

    async def run(self, order: RunRequest) -> AsyncGenerator[EngineEvent]:
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
        """Kill the process that had the device at the last look-up. Ray restarts the process."""
        with suppress(RayError, ValueError):
            last = self._last or await asyncio.to_thread(ray.get_actor, self._names[0], NAMESPACE)
            await asyncio.to_thread(ray.kill, last, no_restart=False)

    async def _handle(self) -> Any:
        """The process that has the device. Raises EngineDied."""
        if self._found is not None:
            return self._found
        found = None
        asked = [asyncio.create_task(self._holder(name)) for name in self._names]
        try:
            for holder in asyncio.as_completed(asked, timeout=self._answer_timeout_s):
                found = await holder
                if found is not None:
                    break
        except TimeoutError as error:
            raise EngineDied("The engine does not answer.") from error
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if found is None:
            raise EngineDied("No engine process has the device.")
        self._last = self._found = found
        return found

    async def _holder(self, name: str) -> Any | None:
        """The process with this name if it has the device, or None."""
        try:
            handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            return handle if await handle.has_device.remote() else None
        except (ValueError, RayError):
            return None

    def _died(self, error: Exception) -> EngineDied:
        """Make the exception for an error of Ray. The next run looks up the process again."""
        self._found = None
        was_taken = isinstance(error, RayError) and was_taken_away(error)
        died = EngineTaken if was_taken else EngineDied
        return died(f"The engine died: {first_line(error)}")


_PROCESS_DIED = "its worker process has died"
_ENDED_BY_RAY = "INTENDED_SYSTEM_EXIT"
"""The exit type of a process that Ray ended, for example with its placement group."""


def ended_by_itself(error: RayError) -> bool:
    """Whether the process of the actor crashed or raised an error.

    Returns False if its node or placement group was lost, if Ray ended the process, or if the
    process cannot be reached. Only the text of an error distinguishes these cases (Ray 2.60).
    """
    if isinstance(error, RayTaskError):
        return True
    return isinstance(error, ActorDiedError) and (
        _PROCESS_DIED in str(error) and _ENDED_BY_RAY not in str(error) and not error.preempted
    )


def was_taken_away(error: RayError) -> bool:
    """Whether the actor ended for a reason outside its process and is not restarted."""
    return isinstance(error, ActorDiedError) and not ended_by_itself(error)


def first_line(error: Exception) -> str:
    """The first line of an error's text. Ray puts details of the actor on the other lines."""
    return next(iter(str(error).splitlines()), type(error).__name__)
