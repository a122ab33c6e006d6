"""EngineHost: runs the orders of job actors on the engine of one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from actors.worker.process_memory import resident_bytes
from actors.worker.run_mark import RunMarkWriter
from actors.worker.watchdog import TimeLimits
from engine.interface import (
    Activity,
    ActivityKind,
    Catalogue,
    Engine,
    EngineError,
    EngineEvent,
    Errored,
    Finished,
    Graph,
    ImageReady,
    LatentReady,
    Limits,
    ModelUse,
    Run,
    validate,
)
from settings.constant import constant

MODEL_LOAD_TIMEOUT_S = constant("MODEL_LOAD_TIMEOUT_S", 600.0)
"""Largest time in seconds of the start of an engine, of the load of a model, or of the first device
call of a kind and size. Kernels may be compiled during such a call.
"""
ENGINE_ANSWER_TIMEOUT_S = constant("ENGINE_ANSWER_TIMEOUT_S", 30.0)
"""Seconds for which an engine may stay silent, in addition to the time that its work may take.
After this time a job actor ends the engine, or the dispatcher ends it if no job runs on the worker.
"""
_BROKEN_AFTER_RUNS = 3
_BROKEN_AFTER_JOBS = 2
_REMEMBERED_RUNS = 1000
_MAX_UNTAKEN = 4
"""A run pauses when the job actor has not yet taken this many of its results."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that an attempt requests from the engine."""

    job_id: str
    attempt: int
    prompt: Any
    """Node graph. It is not validated yet."""
    first_index: Mapping[str, int] | None
    input_files: Mapping[str, bytes]
    mark: Path
    """The file of the `RunMark`."""
    limits: Limits
    input_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height in pixels of each input file whose size is known."""
    is_unbatched: bool = False
    """Whether the run must share no device call with other jobs."""
    is_exclusive: bool = False
    """Whether the run should be alone on the engine."""
    has_previews: bool = False
    """Whether the progress of the run includes previews of the image."""
    name: str = ""
    """The id of the attempt's span. Traces of jobs that shared device calls with this job link to
    it.
    """


@dataclass(frozen=True, slots=True)
class EngineState:
    """The present activity of an engine."""

    kind: ActivityKind
    seconds_left: float
    """Seconds for which the activity may continue before the watchdog ends the process."""
    jobs: int
    """Number of jobs that the device and the machine can run at the same time."""
    models: ModelUse = field(default=ModelUse(), compare=False)
    memory_bytes: int = field(default=0, compare=False)
    """Resident memory of the process."""

    @property
    def works_s(self) -> float:
        """Seconds for which the engine may stay silent because of its present work."""
        return 0.0 if self.kind is ActivityKind.IDLE else self.seconds_left


class EngineDied(Exception):
    """The engine or its process ended during the run."""


class EngineTaken(EngineDied):
    """The engine was lost with its node or placement group. The run is not to blame."""


class EngineClient(Protocol):
    """The engine of a worker, for its job actors. `RemoteEngine` implements it."""

    def run(self, order: RunRequest) -> AsyncGenerator[EngineEvent]:
        """Run an order and yield its events. Raises EngineDied, EngineTaken."""

    async def check(self) -> EngineState:
        """The state of the engine. Raises EngineDied."""

    async def kill(self) -> None:
        """End an engine that does not answer. Its standby takes over."""


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
        """`most_jobs` is the number of jobs for which the memory of the machine has room."""
        self.time_limits = time_limits
        self._most_jobs = most_jobs
        self._engine = engine
        self._catalogue = catalogue
        self._runs: dict[str, tuple[int, Run]] = {}
        """Attempt number and run, by job id."""
        self._failures: list[str] = []
        """The job ids of the runs that failed by the device or the machine since the last run that
        succeeded.
        """
        self._begun: dict[tuple[str, int], bool] = {}
        """By job id and attempt, whether the device has worked for the run. Only the latest runs
        are kept.
        """

    async def run(self, order: RunRequest) -> AsyncGenerator[EngineEvent]:
        """The events of one run. The last event is `Finished` or `Errored`.

        A run ends the run of an earlier attempt at the same job, because the actor of the earlier
        attempt died or lost the job. An earlier attempt gets `Errored` while a later attempt runs.
        Raises EngineDied if the engine has stopped.
        """
        with closing(RunMarkWriter(order.mark)) as mark:
            try:
                graph = await asyncio.to_thread(self._graph, order)
            except EngineError as error:
                yield Errored(error)
                return
            if order.job_id in self._runs and order.attempt <= self._runs[order.job_id][0]:
                yield Errored(EngineError("a later attempt is running"))
                return
            events: asyncio.Queue[EngineEvent] = asyncio.Queue()
            run = self._submit(order, graph, mark, events)
            try:
                while True:
                    event = await events.get()
                    self._note_end(event, order)
                    yield event
                    if isinstance(event, ImageReady | LatentReady):
                        run.take_result()
                    if isinstance(event, Finished | Errored):
                        return
            finally:
                run.cancel()
                if self._runs.get(order.job_id) == (order.attempt, run):
                    del self._runs[order.job_id]

    def _submit(
        self,
        order: RunRequest,
        graph: Graph,
        mark: RunMarkWriter,
        events: asyncio.Queue[EngineEvent],
    ) -> Run:
        loop = asyncio.get_running_loop()

        def take(event: EngineEvent) -> None:
            if _is_device_failure(event):
                mark.set_active(True)
                mark.close()  # The mark is closed, so that the end of the run does not reset it.
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        def set_active(is_active: bool) -> None:
            mark.set_active(is_active)
            if is_active:
                self._begun[key] = True

        self._cancel(order.job_id)
        key = (order.job_id, order.attempt)
        self._remember(key)
        mark.set_active(False)
        try:
            run = self._engine.submit(
                graph,
                on_event=take,
                first_index=order.first_index,
                input_files=order.input_files,
                is_unbatched=order.is_unbatched,
                is_exclusive=order.is_exclusive,
                on_active=set_active,
                on_joined=mark.note_joined,
                limits=order.limits,
                max_untaken=_MAX_UNTAKEN,
                has_previews=order.has_previews,
                name=order.name,
            )
        except EngineError as error:
            raise EngineDied(str(error)) from error
        self._runs[order.job_id] = (order.attempt, run)
        return run

    def _remember(self, key: tuple[str, int]) -> None:
        self._begun[key] = False
        if len(self._begun) > _REMEMBERED_RUNS:
            del self._begun[next(iter(self._begun))]

    def _graph(self, order: RunRequest) -> Graph:
        files, sizes = order.input_files, order.input_sizes
        return validate(order.prompt, self._catalogue, order.limits, files, sizes=sizes)

    def cancel(self, job_id: str, attempt: int) -> bool | None:
        """End a run. Returns whether the device had worked for the run, or None if unknown."""
        if job_id in self._runs and self._runs[job_id][0] == attempt:
            self._cancel(job_id)
        return self._begun.get((job_id, attempt))

    def _cancel(self, job_id: str) -> None:
        if job_id in self._runs:
            self._runs.pop(job_id)[1].cancel()

    def _note_end(self, event: EngineEvent, order: RunRequest) -> None:
        if isinstance(event, Finished):
            self._failures.clear()
        elif isinstance(event, Errored) and event.error.code in ("device_failed", "machine_failed"):
            self._failures.append(order.job_id)
        elif isinstance(event, Errored) and self._engine.has_stopped:
            raise EngineDied("The engine has stopped.")

    def check(self) -> EngineState:
        """The state of the engine. Raises EngineDied if the process must be replaced."""
        if self.is_broken:
            raise EngineDied("The engine is broken.")
        activity = self._engine.activity
        jobs = min(self._engine.jobs, self._most_jobs)
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

        It must be replaced if the engine has stopped. It must also be replaced if at least
        `_BROKEN_AFTER_RUNS` runs of at least `_BROKEN_AFTER_JOBS` jobs have failed by the device or
        the machine since the last run that succeeded.
        """
        failures = self._failures
        is_faulty = len(failures) >= _BROKEN_AFTER_RUNS and len(set(failures)) >= _BROKEN_AFTER_JOBS
        return is_faulty or self._engine.has_stopped


def _is_device_failure(event: EngineEvent) -> bool:
    return isinstance(event, Errored) and event.error.code == "device_failed"
