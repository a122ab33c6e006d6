"""EngineHost: the engine of one worker, as its job actors see it. Owns the device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from actors.worker.process_memory import resident_bytes
from actors.worker.run_mark import RunMarkWriter
from engine.activity import Activity, ActivityKind, ModelUse, TimeLimits
from engine.engine import Engine
from engine.errors import DeviceFailed, EngineError, MachineFailed
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.reports import EngineEvent, Errored, Finished, ImageReady, LatentReady
from engine.run import Run

_BROKEN_AFTER_RUNS = 3
_BROKEN_AFTER_JOBS = 2
_REMEMBERED_RUNS = 1000
_MAX_UNTAKEN = 4
"""How many results of a run may wait to be taken by its job before the run pauses."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an attempt at a job asks of the engine."""

    job_id: str
    attempt: int
    prompt: Any
    """Node graph, not validated yet."""
    first_index: Mapping[str, int] | None
    input_files: Mapping[str, bytes]
    mark: Path
    """The file of its `RunMark`."""
    input_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height of the input files, as far as they are known."""
    is_alone: bool = False
    """It shares no device call with other jobs."""
    is_exclusive: bool = False
    """It shares the engine with no other job."""
    has_previews: bool = False
    """Its progress shows now and then what its picture looks like."""
    limits: Limits | None = None
    """None: those of the engine."""
    name: str = ""
    """By which the trace of a job that shares calls with it knows its attempt."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine does now, for those who wait for it."""

    kind: ActivityKind
    seconds_left: float
    """How long it may go on with it before its watchdog ends it."""
    jobs: int
    """How many jobs at once suit its device and its machine."""
    models: ModelUse = field(default=ModelUse(), compare=False)
    memory_bytes: int = field(default=0, compare=False)
    """That its process has."""

    @property
    def works_s(self) -> float:
        """For how long its present work may keep it from answering again."""
        return 0.0 if self.kind is ActivityKind.IDLE else self.seconds_left


class EngineDied(Exception):
    """The engine, or its process, ended in the middle of the run."""


class EngineTaken(EngineDied):
    """The engine is gone with its node or its place: no run is the reason."""


class EngineClient(Protocol):
    """A worker's engine, seen from a job."""

    def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        """Raises EngineDied, EngineTaken."""

    async def check(self) -> EngineState:
        """What it does, if it answers. Raises EngineDied."""

    async def kill(self) -> None:
        """End an engine that does not answer; a fresh one takes its place."""


class EngineHost:
    """Runs graphs on one engine and streams the events of each run to its job actor."""

    def __init__(
        self,
        *,
        engine: Engine,
        catalogue: Catalogue,
        limits: Limits,
        time_limits: TimeLimits,
        most_jobs: int,
    ) -> None:
        """`most_jobs`: how many the machine has room for, whatever the device has."""
        self.time_limits = time_limits
        self._most_jobs = most_jobs
        self._engine = engine
        self._catalogue = catalogue
        self._limits = limits
        self._runs: dict[str, tuple[int, Run]] = {}
        """By job: attempt and run."""
        self._failures: list[str] = []
        """The job of each run since the last success that device or machine failed."""
        self._begun: dict[tuple[str, int], bool] = {}
        """Whether the device has worked for each of the last runs, by job and attempt."""

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        """The events of one run; the last is `Finished` or `Errored`.

        A later attempt at the same job ends an earlier one, whose actor died or lost the job.
        Raises EngineDied once the engine has stopped.
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
        self, order: Order, graph: Graph, mark: RunMarkWriter, events: asyncio.Queue[EngineEvent]
    ) -> Run:
        loop = asyncio.get_running_loop()

        def take(event: EngineEvent) -> None:
            if _is_device_failure(event):
                mark.set_active(True)
                mark.close()  # the device works for others from now on, but it broke under this one
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
                is_alone=order.is_alone,
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

    def _graph(self, order: Order) -> Graph:
        files, sizes = order.input_files, order.input_sizes
        limits = order.limits or self._limits
        return validate(order.prompt, self._catalogue, limits, files, sizes=sizes)

    def cancel(self, job_id: str, attempt: int) -> bool | None:
        """End a run. Whether the device had worked for it; None if it is not known any more."""
        if job_id in self._runs and self._runs[job_id][0] == attempt:
            self._cancel(job_id)
        return self._begun.get((job_id, attempt))

    def _cancel(self, job_id: str) -> None:
        if job_id in self._runs:
            self._runs.pop(job_id)[1].cancel()

    def _note_end(self, event: EngineEvent, order: Order) -> None:
        if isinstance(event, Finished):
            self._failures.clear()
        elif isinstance(event, Errored) and isinstance(event.error, DeviceFailed | MachineFailed):
            self._failures.append(order.job_id)
        elif isinstance(event, Errored) and self._engine.has_stopped:
            raise EngineDied("The engine has stopped.")

    def check(self) -> EngineState:
        """What it does. Raises EngineDied if only another process can help."""
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
        """What the engine does now."""
        return self._engine.activity

    @property
    def is_broken(self) -> bool:
        """Only another process can help: the engine has stopped, or device or machine failed run
        after run, and not those of one job alone.
        """
        failures = self._failures
        is_faulty = len(failures) >= _BROKEN_AFTER_RUNS and len(set(failures)) >= _BROKEN_AFTER_JOBS
        return is_faulty or self._engine.has_stopped


def _is_device_failure(event: EngineEvent) -> bool:
    return isinstance(event, Errored) and isinstance(event.error, DeviceFailed)
