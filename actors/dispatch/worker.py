"""Worker: one placement group of an endpoint, with its engine and the slots of its job actors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from actors.dispatch.cluster import (
    ActorUnavailable,
    Cluster,
    EngineActor,
    EngineGone,
    EngineRestarts,
)
from actors.dispatch.names import slot_name
from actors.dispatch.slot import Slot, SlotState
from actors.dispatch.slots import SlotNumbers, Slots
from actors.dispatch.startup import Startup
from events.retry import keep_trying

logger = logging.getLogger(__name__)

T = TypeVar("T")

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
        jobs_per_actor: int,
        startup: Startup,
        engine_silence_s: float,
        on_change: Callable[[], None],
        period_s: float = 1.0,
    ) -> None:
        """`jobs_per_actor`: 0 stands for one on a worker with a GPU, and 1000 on one without.

        `engine_silence_s`: how long its engine may not answer, beyond the time that its work takes,
        before it is ended. `period_s`: how often the engine is checked, and what failed is tried
        again. One that did not answer is checked ten times as often.
        """
        self.name = name
        self.checkpoints: set[str] = set()
        """What its engine was asked for since it started."""
        self.slots = Slots(slots, make=self._slot, on_change=on_change)
        self.is_ready = False
        """Whether its engine answers. If it does not, the worker is given no job."""
        self.idle_since = time.monotonic()
        self.is_leaving = False
        """It gets no more jobs, and is closed once it runs none; see `leave`."""
        self.unwanted_since: float | None = None
        """Since when it is not ready, and no job needs it."""
        self.startup = startup
        self._cluster = cluster
        self._jobs_per_actor = jobs_per_actor
        self._engine_silence_s = engine_silence_s
        self._silent_until: float | None = None
        """Until when its engine may be silent; None before its first answer."""
        self._on_change = on_change
        self._period_s = period_s
        self._engine: EngineActor | None = None
        self._gpus = 0.0

    async def keep(self) -> None:
        """Open it, then watch its engine, until cancelled. Then its actors stay as they are."""
        self._gpus = await self._place()
        try:
            engine = await self._open_engine()
            found = await self._persist(lambda: self._cluster.slots(self.name))
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

    def told(self) -> dict[str, Any]:
        """As JSON has it. It is `starting` also again, after a loss of its engine."""
        return {
            "state": "leaving" if self.is_leaving else "ready" if self.is_ready else "starting",
            "running": self.slots.busy,
            "checkpoints": sorted(self.checkpoints),
            "trouble": None if self.is_ready else self.startup.trouble,
        }

    @property
    def is_heard(self) -> bool:
        """Whether its engine answers, and the job actors that were found said what they run."""
        return self.is_ready and self.slots.are_heard

    @property
    def takes_jobs(self) -> bool:
        return self.is_ready and not self.is_leaving

    def idle_slot(self) -> Slot | None:
        return self.slots.idle() if self.takes_jobs else None

    def free_slots(self) -> int:
        return self.slots.free() if self.takes_jobs else 0

    def leave(self) -> None:
        """No further job."""
        self.is_leaving = True
        self._on_change()

    def mark_unready(self) -> None:
        """As after an attempt that failed by the engine: no further job until it has answered."""
        if self.is_ready:
            self.is_ready = False
            self._on_change()

    async def cancel_run(self, job_id: str, attempt: int) -> bool | None:
        """End a run whose job actor is gone; see `EngineActor.cancel`."""
        return None if self._engine is None else await self._engine.cancel(job_id, attempt)

    async def _check(self, engine: EngineActor) -> EngineActor:
        """The engine that is there afterwards: Ray restarts one, unless it ended for good."""
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
            await self._place()  # again: its place may be gone, too
            return await self._open_engine()
        except ActorUnavailable as error:
            self.mark_unready()
            self.startup.silent(error)
            await self._end_if_stuck(engine)
        else:
            self._silent_until = time.monotonic() + state.works_s + self._engine_silence_s
            self._note_answer()
            self.slots.fit(state.jobs)
            if not self.is_ready:
                self.is_ready = True
                self._on_change()
        return engine

    async def _end_if_stuck(self, engine: EngineActor) -> None:
        """An engine that stands still keeps its device from the one that stands by.

        While a job runs there, its job actor sees to it: the engine may hear it and not us.
        """
        now = time.monotonic()
        if self.is_busy or self._silent_until is None or now < self._silent_until:
            return
        self._silent_until = now + self._engine_silence_s  # it is ended once more then
        logger.warning("engine is stuck", extra={"action": "engine_kill", "worker": self.name})
        with suppress(ActorUnavailable):
            await engine.kill()

    def _note_answer(self) -> None:
        """An engine without any job actor is of no use to anybody."""
        if all(slot.state is SlotState.STARTING for slot in self.slots):
            self.startup.silent(_NO_JOB_ACTOR)
        else:
            self.startup.answered()

    async def _place(self) -> float:
        self.startup.waits_for_room()
        gpus = await self._persist(lambda: self._cluster.place(self.name))
        self.startup.placed()
        return gpus

    async def _open_engine(self) -> EngineActor:
        self._engine = await self._persist(lambda: self._cluster.engine(self.name))
        return self._engine

    async def _persist(self, step: Callable[[], Awaitable[T]]) -> T:
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
