"""EngineHost: the engine of one worker, as its job actors see it. Owns the device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.engine import Engine
from engine.errors import EngineError, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.reports import EngineEvent, Errored, Finished
from engine.run import Run

_BROKEN_AFTER = 3


@dataclass(frozen=True, slots=True)
class Order:
    """What an attempt at a job asks of the engine."""

    job_id: str
    attempt: int
    prompt: Any
    """Node graph, not validated yet."""
    first_index: Mapping[str, int] | None
    input_files: Mapping[str, bytes]
    is_alone: bool = False
    """It shares no device call with other jobs."""
    is_exclusive: bool = False
    """It shares the engine with no other job."""


class EngineDied(Exception):
    """The engine's process ended in the middle of the run."""


class EngineClient(Protocol):
    """A worker's engine, seen from a job: in this process (`EngineHost`) or in its own actor."""

    def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        """Raises EngineDied."""

    async def steps_done(self) -> int:
        """Raises EngineDied."""

    async def kill(self) -> None:
        """End a stuck engine; a fresh one takes its place."""


class EngineHost:
    """Runs graphs on one engine and streams the events of each run to its job actor."""

    def __init__(self, *, engine: Engine, catalogue: Catalogue, limits: Limits) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._limits = limits
        self._runs: dict[str, tuple[int, Run]] = {}
        """By job: attempt and run."""
        self._failures_in_a_row = 0

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        """The events of one run; the last is `Finished` or `Errored`.

        A later attempt at the same job ends an earlier one, whose actor died or lost the job.
        """
        try:
            graph = await asyncio.to_thread(
                validate, order.prompt, self._catalogue, self._limits, order.input_files
            )
        except EngineError as error:
            yield Errored(error)
            return
        events: asyncio.Queue[EngineEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        job_id = order.job_id
        if job_id in self._runs and order.attempt <= self._runs[job_id][0]:
            yield Errored(EngineError("a later attempt is running"))
            return
        self._cancel(job_id)
        run = self._engine.submit(
            graph,
            on_event=lambda event: _hand_over(loop, events, event),
            first_index=order.first_index,
            input_files=order.input_files,
            is_alone=order.is_alone,
            is_exclusive=order.is_exclusive,
        )
        self._runs[job_id] = (order.attempt, run)
        try:
            while True:
                event = await events.get()
                self._count_failures(event)
                yield event
                if isinstance(event, Finished | Errored):
                    return
        finally:
            run.cancel()
            if self._runs.get(job_id) == (order.attempt, run):
                del self._runs[job_id]

    async def cancel(self, job_id: str, attempt: int) -> None:
        if job_id in self._runs and self._runs[job_id][0] == attempt:
            self._cancel(job_id)

    def _count_failures(self, event: EngineEvent) -> None:
        match event:
            case Finished():
                self._failures_in_a_row = 0
            case Errored(error=NodeFailed()):
                self._failures_in_a_row += 1

    @property
    def is_broken(self) -> bool:
        """Failed run after run: a device in a bad state fails them all, until a fresh start."""
        return self._failures_in_a_row >= _BROKEN_AFTER

    def _cancel(self, job_id: str) -> None:
        if job_id in self._runs:
            self._runs.pop(job_id)[1].cancel()

    async def steps_done(self) -> int:
        """Counts device calls: tells a busy engine from a stuck one."""
        return self._engine.steps_done


def _hand_over(
    loop: asyncio.AbstractEventLoop, events: asyncio.Queue[EngineEvent], event: EngineEvent
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(events.put_nowait, event)
