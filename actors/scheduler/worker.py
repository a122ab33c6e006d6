"""Worker: one placement group of an endpoint, with its engine and the slots of its job actors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

from actors.scheduler.cluster import (
    ActorUnavailable,
    Cluster,
    EngineActor,
    EngineGone,
    EngineRestarts,
)
from actors.scheduler.names import slot_name
from actors.scheduler.slots import Slot, SlotNumbers, Slots, SlotState
from actors.worker.engine_process import ServerInfo
from events.retry import keep_trying
from settings.constant import constant

logger = logging.getLogger(__name__)

T = TypeVar("T")


JOBS_PER_ACTOR = constant("JOBS_PER_ACTOR", 0)
"""Number of jobs that a job actor runs before it is replaced. 0 means 1 job on a worker with a GPU,
and 1000 jobs on other workers, because the start of an actor takes 1.4 s of CPU time.
"""
_JOBS_PER_ACTOR_ON_GPU = 1
_JOBS_PER_ACTOR_ON_CPU = 1000
_STARTING_ON_GPU = 4
_STARTING_ON_CPU = 1
_NO_JOB_ACTOR = ActorUnavailable("none of its job actors has started")


class Worker:
    def __init__(
        self,
        name: str,
        *,
        cluster: Cluster,
        slots: SlotNumbers,
        startup: Startup,
        engine_silence_s: float,
        on_change: Callable[[], None],
        jobs_per_actor: int = JOBS_PER_ACTOR,
        period_s: float = 1.0,
    ) -> None:
        """See `JOBS_PER_ACTOR` for `jobs_per_actor`.

        The engine is checked every `period_s` seconds, or ten times as often while it does not
        answer. It is killed if it does not answer for `engine_silence_s` seconds longer than its
        work may take.
        """
        self.name = name
        self.checkpoints: set[str] = set()
        """Checkpoints of the jobs that the engine has got since its start."""
        self.slots = Slots(slots, make=self._slot, on_change=on_change)
        self.is_ready = False
        """Whether the engine answered the last check. If not, the worker gets no jobs."""
        self.idle_since = time.monotonic()
        self.is_leaving = False
        """Whether the worker gets no more jobs, and is closed when its jobs have ended."""
        self.unwanted_since: float | None = None
        """Time since which the worker has been neither ready nor needed, or None."""
        self.startup = startup
        self._cluster = cluster
        self._jobs_per_actor = jobs_per_actor
        self._engine_silence_s = engine_silence_s
        self._silent_until: float | None = None
        """Time until which the engine may stay silent. None until its first answer."""
        self._on_change = on_change
        self._period_s = period_s
        self._engine: EngineActor | None = None
        self._server: ServerInfo | None = None
        self._gpus = 0.0

    async def keep(self) -> None:
        """Open the worker and check its engine until cancelled. Its actors outlive this call."""
        self._gpus = await self._place()
        try:
            engine = await self._open_engine()
            found = await self._retry(lambda: self._cluster.slots(self.name))
            starting = _STARTING_ON_GPU if self._gpus else _STARTING_ON_CPU
            self.slots.open(found, starting=starting)
            while True:
                engine = await self._check(engine)
                await asyncio.sleep(self._period_s if self.is_ready else self._period_s / 10)
        finally:
            self.mark_unready()
            await self.slots.detach()

    @property
    def is_busy(self) -> bool:
        return self.slots.is_busy

    def describe(self) -> dict[str, Any]:
        """Return a description for JSON. After a loss of the engine the state is `starting`."""
        return {
            "state": "leaving" if self.is_leaving else "ready" if self.is_ready else "starting",
            "running": self.slots.busy,
            "checkpoints": sorted(self.checkpoints),
            "trouble": self._trouble(),
            "server": None if self._server is None else asdict(self._server),
        }

    def _trouble(self) -> str | None:
        """Return why the worker is not ready, or what it lacks although it is ready."""
        if not self.is_ready:
            return self.startup.trouble
        return None if self._server is None else self._server.trouble

    @property
    def has_reported(self) -> bool:
        """Whether the engine answers and all adopted slots have reported their jobs."""
        return self.is_ready and self.slots.have_reported

    @property
    def takes_jobs(self) -> bool:
        return self.is_ready and not self.is_leaving

    def idle_slot(self) -> Slot | None:
        return self.slots.idle() if self.takes_jobs else None

    def free_slots(self) -> int:
        return self.slots.free() if self.takes_jobs else 0

    def leave(self) -> None:
        """Give no further jobs to the worker."""
        self.is_leaving = True
        self._on_change()

    def mark_unready(self) -> None:
        """Give no further jobs to the worker until the engine has answered again."""
        if self.is_ready:
            self.is_ready = False
            self._on_change()

    async def cancel_run(self, job_id: str, attempt: int) -> bool | None:
        """See `EngineActor.cancel`."""
        return None if self._engine is None else await self._engine.cancel(job_id, attempt)

    async def _check(self, engine: EngineActor) -> EngineActor:
        """Check the engine. Returns the engine, or a new engine if this engine has ended."""
        try:
            state = await engine.check()
        except EngineGone as error:
            self._silent_until = None
            self.checkpoints.clear()
            self.mark_unready()
            if isinstance(error, EngineRestarts):
                self.startup.silent(error)
            else:
                self.startup.died(error)
            fields = {"action": "engine_gone", "worker": self.name, "error": str(error)}
            logger.warning("engine gone", extra=fields)
            # The placement group may be lost, too.
            await self._place()
            return await self._open_engine()
        except ActorUnavailable as error:
            self.mark_unready()
            self.startup.silent(error)
            await self._end_if_stuck(engine)
        else:
            self._silent_until = time.monotonic() + state.works_s + self._engine_silence_s
            self._server = state.server
            self._note_answer()
            self.slots.fit(state.jobs)
            if not self.is_ready:
                self.is_ready = True
                self._on_change()
        return engine

    async def _end_if_stuck(self, engine: EngineActor) -> None:
        """Kill an engine that hangs, so that its standby takes the device.

        While a job runs on the worker, only its job actor may do this, because the engine may
        answer the job actor and not the dispatcher.
        """
        now = time.monotonic()
        if self.is_busy or self._silent_until is None or now < self._silent_until:
            return
        # After this time, an engine that is still silent is killed again.
        self._silent_until = now + self._engine_silence_s
        fields = {"action": "engine_kill", "worker": self.name}
        logger.warning("an engine does not answer and is ended", extra=fields)
        with suppress(ActorUnavailable):
            await engine.kill()

    def _note_answer(self) -> None:
        """Note an answer of the engine. Without a started job actor, the worker is silent, too."""
        if all(slot.state is SlotState.STARTING for slot in self.slots):
            self.startup.silent(_NO_JOB_ACTOR)
        else:
            self.startup.answered()

    async def _place(self) -> float:
        self.startup.note_unplaced()
        gpus = await self._retry(lambda: self._cluster.place(self.name))
        self.startup.placed()
        return gpus

    async def _open_engine(self) -> EngineActor:
        self._engine = await self._retry(lambda: self._cluster.engine(self.name))
        return self._engine

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T:
        return await keep_trying(
            step,
            on=ActorUnavailable,
            first_pause_s=self._period_s,
            longest_pause_s=self._period_s,
            fields={"action": "worker_open", "worker": self.name},
        )

    def _slot(self, number: int, on_change: Callable[[], None]) -> Slot:
        default = _JOBS_PER_ACTOR_ON_GPU if self._gpus else _JOBS_PER_ACTOR_ON_CPU
        return Slot(
            slot_name(self.name, number),
            worker=self.name,
            cluster=self._cluster,
            jobs_per_actor=self._jobs_per_actor or default,
            on_change=on_change,
            retry_s=self._period_s,
        )


_MOST_CHARS = 1200
_IN_CONSTRUCTOR = "creation task"
"""Text in the first line of Ray's error for an actor whose constructor failed. The reason is in the
last line of such an error.
"""


class Startup:
    """Records whether an engine starts after its worker is placed, and again after each loss."""

    def __init__(
        self, *, longest_s: float, most_deaths: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A start fails after `longest_s` seconds without an answer, or after `most_deaths` deaths.

        The time until the worker is placed does not count.
        """
        self.is_placed = False
        self._longest_s = longest_s
        self._most_deaths = most_deaths
        self._clock = clock
        self._waits_since = clock()
        self._silent_since: float | None = None
        self._deaths = 0
        self._error: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the worker has failed to start. Its resources should then be released."""
        since = self._silent_since
        is_late = since is not None and self._clock() - since > self._longest_s
        return self.is_placed and (is_late or self._deaths >= self._most_deaths)

    @property
    def trouble(self) -> str | None:
        """Why the worker is not ready, in one line, or None after an answer of the engine."""
        if not self.is_placed:
            return "the cluster has no room for a worker"
        if self._silent_since is None:
            return None
        return self._error or "its engine has not answered yet"

    @property
    def unplaced_s(self) -> float:
        """Seconds for which the worker has waited to be placed, or 0 if it is placed."""
        return 0.0 if self.is_placed else self._clock() - self._waits_since

    def note_unplaced(self) -> None:
        self.is_placed = False
        self._waits_since = self._clock()

    def placed(self) -> None:
        now, since = self._clock(), self._silent_since
        self.is_placed = True
        self._silent_since = now if since is None else since + (now - self._waits_since)

    def died(self, error: Exception) -> None:
        """Note that the engine has ended, and that the cluster does not restart it."""
        self._deaths += 1
        self.silent(error)

    def silent(self, error: Exception) -> None:
        """Note that the engine did not answer, or that the cluster restarts it."""
        if self._silent_since is None:
            self._silent_since = self._clock()
        self._error = _line(error)

    def answered(self) -> None:
        self._silent_since = self._error = None
        self._deaths = 0


def _line(error: Exception) -> str:
    """Return the line of an error's text that contains the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if _IN_CONSTRUCTOR in lines[0] else 0][:_MOST_CHARS]
