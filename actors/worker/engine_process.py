"""EngineProcess: the Ray actor that owns the device of a worker and runs the graphs of its jobs.

`RemoteEngine`, in the job actor, sends a `RunRequest` to `EngineProcess`, whose `EngineHost` runs
it on the engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import ray
from pydantic import SecretStr
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from actors.location import Location, location
from actors.worker.config import EngineConfig
from actors.worker.process_memory import (
    job_actors_that_fit,
    limit_memory,
    memory_bytes,
    resident_bytes,
)
from actors.worker.result_file import FileReady
from actors.worker.run_mark import RunMarkWriter
from actors.worker.standby import DeviceLock, Devices, stand_by, wants_standby
from actors.worker.watchdog import TimeLimits, Watchdog, exit_later
from engine.interface import (
    Activity,
    ActivityKind,
    Catalogue,
    DeviceFailed,
    DeviceOptions,
    Engine,
    EngineError,
    EngineEvent,
    Errored,
    Finished,
    Graph,
    ImageReady,
    LatentReady,
    ModelsFolder,
    ModelUse,
    Run,
    RunOptions,
    TextReady,
    installed_nodes,
    validate,
)
from events.store.records import Endpoint
from events.types import ComfyUIServer
from settings.constant import constant
from settings.engine import EngineSettings
from settings.settings import forget_secrets
from telemetry.logs import set_up_logging

logger = logging.getLogger(__name__)

NAMESPACE = "darkroom"
"""Ray namespace of the actors of workers."""
_EVENTS_AHEAD = 4
"""Largest number of events of a run that are sent to the job actor and not yet handled."""
MODEL_LOAD_TIMEOUT_S = constant("MODEL_LOAD_TIMEOUT_S", 600.0)
"""Largest time in seconds for the start of an engine, the load of a model, or the first device call
of a kind and size, which may compile kernels.
"""
ENGINE_ANSWER_TIMEOUT_S = constant("ENGINE_ANSWER_TIMEOUT_S", 30.0)
"""Seconds for which an engine may stay silent, in addition to the time that its work may take. Then
its job actors end the engine, or the dispatcher does so if no job runs on the worker.
"""
_SERVER_TIMEOUT_S = 10.0
_BROKEN_AFTER_RUNS = 3
_BROKEN_AFTER_JOBS = 2
_REMEMBERED_RUNS = 1000
_PROGRESS_PERIOD_S = constant("PROGRESS_PERIOD_S", 0.25)
"""Shortest time in seconds between two progress messages of a job."""
_STEP_SEED_OFFSET = constant("STEP_SEED_OFFSET", 1)
"""See `DeviceOptions`."""
_EXCLUSIVE_TIMEOUT_S = constant("EXCLUSIVE_TIMEOUT_S", 600.0)
"""Seconds for which a suspect runs alone on an engine. After this time other jobs may join. Once a
job has joined, the suspect is not blamed if the engine ends.
"""


@dataclass(frozen=True, slots=True)
class RunRequest:
    job_id: str
    attempt: int
    prompt: Any
    """Node graph. It is not validated yet."""
    mark: Path
    """The file of the `RunMark`."""
    options: RunOptions
    input_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height in pixels, by the name of the input file, if the size is known."""
    extra_pnginfo: Mapping[str, Any] = field(default_factory=dict)
    """Texts for the files that ComfyUI writes. The job actor adds them to all other files."""
    extra_data: SecretStr | None = None
    """JSON with further members of `extra_data` for a ComfyUI server."""


RunEvent: TypeAlias = EngineEvent | FileReady


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The properties of a running ComfyUI server."""

    version: str | None
    failed_imports: tuple[str, ...]
    """The folders of the packs that could not be imported."""
    object_info_digest: str | None = field(default=None, compare=False)
    """The digest of the server's `/object_info`, if it is known."""

    @property
    def trouble(self) -> str | None:
        """A sentence that lists the packs that could not be imported, or None if there are none."""
        failed = ", ".join(self.failed_imports)
        return f"Packs that could not be imported: {failed}" if failed else None


@dataclass(frozen=True, slots=True)
class EngineState:
    """The present activity of an engine, and the resources that it uses."""

    kind: ActivityKind
    seconds_left: float
    """Seconds for which the activity may continue before the watchdog ends the process."""
    jobs: int
    """Number of jobs that fit on the device and the machine at the same time."""
    models: ModelUse = field(default=ModelUse(), compare=False)
    memory_bytes: int = field(default=0, compare=False)
    """Resident memory of the engine process."""
    server: ServerInfo | None = field(default=None, compare=False)
    """The ComfyUI server of the engine, if it has one."""

    @property
    def works_s(self) -> float:
        """Seconds for which the engine may stay silent because of its present work."""
        return 0.0 if self.kind is ActivityKind.IDLE else self.seconds_left


class EngineDied(Exception):
    """The engine or its process has ended or does not answer."""


class EngineLost(EngineDied):
    """The engine was lost with its node or placement group. No job is to blame."""


class EngineStandsBy(EngineDied):
    """The process is the standby. It had the device before it was restarted, or never."""


class RemoteEngine:
    """A client for the engine of a worker, for the job actors of the worker."""

    def __init__(self, *names: str, answer_timeout_s: float = ENGINE_ANSWER_TIMEOUT_S) -> None:
        """`names` are the names of the worker's engine processes, of which one has the device."""
        self._names = names
        self._answer_timeout_s = answer_timeout_s
        self._found: Any = None
        self._last: Any = None
        """The process that had the device at the last look-up."""

    async def find(self) -> None:
        """Look up the process with the device now, so that the first run starts sooner."""
        with suppress(EngineDied):
            await self._handle()

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent]:
        """Run a graph and yield its events. Raises EngineDied, EngineLost.

        The process may have become the standby since the last look-up. It has then done nothing for
        the job, so the job runs on the process that has the device now.
        """
        while True:
            try:
                async with aclosing(self._run(request)) as events:
                    async for event in events:
                        yield event
                return
            except EngineStandsBy:
                continue  # The next look-up raises EngineDied if no process has the device.

    async def _run(self, request: RunRequest) -> AsyncGenerator[RunEvent]:
        handle = await self._handle()
        method: Any = handle.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=_EVENTS_AHEAD
        )
        ended = False
        try:
            async for reference in method.remote(request):
                event: RunEvent = await reference
                ended = isinstance(event, Finished | Errored)
                yield event
        except RayError as error:
            ended = True
            raise self._died(error) from error
        finally:
            if not ended:
                handle.cancel.remote(request.job_id, request.attempt)

    async def check(self) -> EngineState:
        """Return the state of the engine. Raises EngineDied, EngineLost."""
        handle = await self._handle()
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                state: EngineState = await handle.check.remote()
                return state
        except (RayError, TimeoutError) as error:
            raise self._died(error) from error

    async def comfyui_server(self) -> ComfyUIServer | None:
        """Return what is known about the server of a `ComfyUIEngine`, or None without an answer.

        While the server is restarted, this waits at most `_SERVER_TIMEOUT_S` seconds.
        """
        try:
            async with asyncio.timeout(_SERVER_TIMEOUT_S):
                handle = await self._handle()
                server: ComfyUIServer | None = await handle.server.remote()
                return server
        except (RayError, EngineDied, TimeoutError):
            return None

    async def kill(self) -> None:
        """Kill the process that had the device at the last look-up. Ray restarts the process."""
        with suppress(RayError, ValueError):
            last = self._last or await asyncio.to_thread(ray.get_actor, self._names[0], NAMESPACE)
            await asyncio.to_thread(ray.kill, last, no_restart=False)

    async def _handle(self) -> Any:
        """Return the process that has the device. Raises EngineDied."""
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
        """Return the process with this name if it has the device, or None."""
        try:
            handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            return handle if await handle.has_device.remote() else None
        except (ValueError, RayError):
            return None

    def _died(self, error: Exception) -> EngineDied:
        """Make an exception from `error`, and forget the process, so the next call looks it up."""
        self._found = None
        died = EngineDied
        if isinstance(error, EngineStandsBy):
            died = EngineStandsBy
        elif isinstance(error, RayError) and was_taken_away(error):
            died = EngineLost
        return died(f"The engine died: {first_line(error)}")


class EngineProcess:
    """One of the two engine processes of a worker: the process that has the device, or the standby.

    The constructor starts the engine in a thread, because Ray does not restart a process whose
    constructor raises an error. If the engine does not start or is broken, the process ends, and
    Ray restarts it.
    """

    def __init__(
        self, config: EngineConfig, *, device: str, devices: Devices | None = None
    ) -> None:
        """`devices` is set only for a standby.

        Raises RuntimeError if `devices` belong to another node. The dispatcher then makes another
        standby.
        """
        set_up_logging(log_format=config.log_format)
        forget_secrets(os.environ)
        if devices is not None:
            devices.adopt()
        limit_memory(config.engine.memory_bytes, device=device)
        self._device_lock = DeviceLock(str(ray.get_runtime_context().get_placement_group_id()))
        self._starting = ThreadPoolExecutor(1, "engine-start").submit(
            _start_engine, config, device=device, lock=self._device_lock
        )

    async def has_device(self) -> bool:
        return self._device_lock.is_held

    async def standby_devices(self) -> Devices | None:
        """Return the devices for a standby, or None if workers on this machine have no standby."""
        return Devices.of_this_process() if wants_standby() else None

    async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
        """Run a graph. Raises EngineStandsBy if this process is the standby."""
        host = await self._host()
        try:
            async with aclosing(host.run(request)) as events:
                async for event in events:
                    yield event
        finally:
            if host.is_broken:
                logger.error("the engine is broken", extra={"action": "engine_exit"})
                os._exit(1)

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        """Cancel a run (see `EngineHost.cancel`). Returns None if this process is the standby."""
        return (await self._host()).cancel(job_id, attempt) if self._device_lock.is_held else None

    async def check(self) -> EngineState:
        """Return the state of the engine after its start.

        Raises EngineDied if the engine is broken, EngineStandsBy if this process is the standby.
        """
        return (await self._host()).check()

    async def location(self) -> Location:
        return location()

    async def _host(self) -> EngineHost:
        """Return the engine after its start. Raises EngineStandsBy if this process is the standby.

        A caller may have looked up this process before the process was restarted as the standby.
        Without the error, this caller would wait until the other process ends. Raises EngineDied if
        the device of the engine is missing.
        """
        if not self._device_lock.is_held:
            raise EngineStandsBy("The process is the standby since it was restarted.")
        try:
            return await asyncio.shield(asyncio.wrap_future(self._starting))
        except DeviceFailed as error:
            raise EngineDied(str(error)) from error


EngineProcessActor = ray.remote(EngineProcess)


class EngineHost:
    """Runs graphs on one engine and streams the events of each run to its job actor."""

    def __init__(
        self,
        *,
        engine: Engine,
        catalogue: Catalogue,
        time_limits: TimeLimits,
        most_jobs: int,
    ) -> None:
        """`most_jobs` is the number of jobs that fit into the memory of the machine."""
        self.time_limits = time_limits
        self._most_jobs = most_jobs
        self._engine = engine
        self._catalogue = catalogue
        self._runs: dict[str, tuple[int, Run]] = {}
        """Attempt number and run, by job id."""
        self._failures: list[str] = []
        """Job ids of the runs since the last success that failed because of the device or the
        machine.
        """
        self._begun: dict[tuple[str, int], bool] = {}
        """Whether the device has worked for a run, by job id and attempt, for the latest runs."""

    async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
        """Run a graph and yield its events. The last event is `Finished` or `Errored`.

        A run cancels the run of an earlier attempt at the same job, because the job actor of the
        earlier attempt died or lost the job. If a later attempt is already running, the only event
        is `Errored`. Raises EngineDied if the engine has stopped.
        """
        with closing(RunMarkWriter(request.mark)) as mark:
            try:
                graph = await asyncio.to_thread(self._graph, request)
            except EngineError as error:
                yield Errored(error)
                return
            if request.job_id in self._runs and request.attempt <= self._runs[request.job_id][0]:
                yield Errored(EngineError("a later attempt is running"))
                return
            events: asyncio.Queue[EngineEvent] = asyncio.Queue()
            run = self._submit(request, graph, mark, events)
            try:
                while True:
                    event = await events.get()
                    self._note_end(event, request)
                    yield event
                    if isinstance(event, ImageReady | LatentReady | TextReady):
                        self._engine.take_result(run)
                    if isinstance(event, Finished | Errored):
                        return
            finally:
                self._engine.cancel(run)
                if self._runs.get(request.job_id) == (request.attempt, run):
                    del self._runs[request.job_id]

    def _submit(
        self,
        request: RunRequest,
        graph: Graph,
        mark: RunMarkWriter,
        events: asyncio.Queue[EngineEvent],
    ) -> Run:
        loop = asyncio.get_running_loop()

        def pass_on(event: EngineEvent) -> None:
            if _is_device_failure(event):
                mark.set_active(True)
                mark.close()  # The mark is closed, so that the end of the run does not reset it.
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        def set_active(is_active: bool) -> None:
            mark.set_active(is_active)
            if is_active:
                self._begun[key] = True

        self._cancel(request.job_id)
        key = (request.job_id, request.attempt)
        self._remember(key)
        mark.set_active(False)
        try:
            run = self._engine.submit(
                graph,
                request.options,
                on_event=pass_on,
                on_active=set_active,
                on_joined=mark.note_joined,
            )
        except EngineError as error:
            raise EngineDied(str(error)) from error
        self._runs[request.job_id] = (request.attempt, run)
        return run

    def _remember(self, key: tuple[str, int]) -> None:
        self._begun[key] = False
        if len(self._begun) > _REMEMBERED_RUNS:
            del self._begun[next(iter(self._begun))]

    def _graph(self, request: RunRequest) -> Graph:
        limits, files = request.options.limits, request.options.input_files
        return validate(request.prompt, self._catalogue, limits, files, sizes=request.input_sizes)

    def cancel(self, job_id: str, attempt: int) -> bool | None:
        """Cancel a run. Returns whether the device has worked for the run, or None if unknown."""
        if job_id in self._runs and self._runs[job_id][0] == attempt:
            self._cancel(job_id)
        return self._begun.get((job_id, attempt))

    def _cancel(self, job_id: str) -> None:
        if job_id in self._runs:
            self._engine.cancel(self._runs.pop(job_id)[1])

    def _note_end(self, event: EngineEvent, request: RunRequest) -> None:
        if isinstance(event, Finished):
            self._failures.clear()
        elif isinstance(event, Errored) and event.error.code in ("device_failed", "machine_failed"):
            self._failures.append(request.job_id)
        elif isinstance(event, Errored) and self._engine.has_stopped:
            raise EngineDied("The engine has stopped.")

    def check(self) -> EngineState:
        """Return the state of the engine. Raises EngineDied if the process must be replaced."""
        if self.is_broken:
            raise EngineDied("The engine is broken.")
        activity = self._engine.activity
        jobs = min(self._engine.suggested_concurrency, self._most_jobs)
        return EngineState(
            activity.kind,
            self.time_limits.seconds_left(activity),
            jobs,
            models=self._engine.model_use,
            memory_bytes=resident_bytes(),
        )

    @property
    def activity(self) -> Activity:
        return self._engine.activity

    @property
    def is_broken(self) -> bool:
        """Whether the process must be replaced.

        This is so if the engine has stopped. It is also so if, since the last success, at least
        `_BROKEN_AFTER_RUNS` runs of `_BROKEN_AFTER_JOBS` different jobs have failed because of the
        device or the machine.
        """
        failures = self._failures
        is_faulty = len(failures) >= _BROKEN_AFTER_RUNS and len(set(failures)) >= _BROKEN_AFTER_JOBS
        return is_faulty or self._engine.has_stopped


def _is_device_failure(event: EngineEvent) -> bool:
    return isinstance(event, Errored) and event.error.code == "device_failed"


def _start_engine(config: EngineConfig, *, device: str, lock: DeviceLock) -> EngineHost:
    """Start the engine when this process holds the lock. A failed start ends the process.

    Raises DeviceFailed if the device is missing. The process then lives for a while, because only a
    living process can say why the engine is not ready.
    """
    try:
        if not lock.acquire():
            stand_by(lock)
        exit_later(MODEL_LOAD_TIMEOUT_S)  # This call ends the process if the start hangs.
        host = build_engine_host(config, device=device)
        Watchdog(lambda: host.activity, host.time_limits).start()
    except DeviceFailed:
        logger.exception("the engine has no device", extra={"action": "engine_start"})
        raise
    except BaseException:
        logger.exception("the engine did not start", extra={"action": "engine_exit"})
        os._exit(1)
    else:
        return host


def build_engine_host(config: EngineConfig, *, device: str) -> EngineHost:
    # The folder is read again for each job, because a job may use a new file.
    models = ModelsFolder(config.models_dir, comfyui_dir=config.comfyui_dir, ttl_s=0)
    more_nodes = installed_nodes()
    engine = Engine(
        models=models,
        options=device_options(config.engine, config.endpoint, device=device),
        exclusive_s=_EXCLUSIVE_TIMEOUT_S,
        progress_period_s=_PROGRESS_PERIOD_S,
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


_PROCESS_DIED = "its worker process has died"
_ENDED_BY_RAY = "INTENDED_SYSTEM_EXIT"
"""The exit type in Ray's error text if Ray ended the process, for example with its placement group.
"""


def ended_by_itself(error: RayError) -> bool:
    """Return whether the process of the actor crashed or raised an error.

    The result is False if its node or placement group was lost, if Ray ended the process, or if the
    process cannot be reached. Only the text of the error distinguishes these cases (Ray 2.60).
    """
    if isinstance(error, RayTaskError):
        return True
    return isinstance(error, ActorDiedError) and (
        _PROCESS_DIED in str(error) and _ENDED_BY_RAY not in str(error) and not error.preempted
    )


def was_taken_away(error: RayError) -> bool:
    """Return whether the actor ended for a reason outside its process and is not restarted."""
    return isinstance(error, ActorDiedError) and not ended_by_itself(error)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text. Ray puts details of the actor on later lines.

    The text of a RayTaskError begins with the place of the call. Its cause is our exception.
    """
    reason = error.cause if isinstance(error, RayTaskError) else error
    return next(iter(str(reason).splitlines()), type(reason).__name__)
