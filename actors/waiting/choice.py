"""Choice: which waiting job starts next, and on which worker.

A job prefers a worker that holds its checkpoint (delay scheduling: M. Zaharia et al., 2010). While
none has room, others of those whose turns come next may pass it; it keeps its place. After some
seconds it takes any worker. Without such a wait each job of another checkpoint makes some worker
load it, and none gets further; with too long a one, slots stand empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.dispatch.free_slots import FreeSlots
from actors.dispatch.slot import Slot
from actors.dispatch.worker import Worker
from actors.waiting.classes import WaitingJobs
from actors.waiting.running_jobs import RunningJobs
from actors.waiting.turns import Waiting
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings

_LOOK_AT = 16
"""How many owners' jobs may be passed in one choice."""


@dataclass(frozen=True, slots=True)
class Chosen:
    job: Waiting
    worker: Worker
    slot: Slot


class Choice:
    def __init__(
        self,
        waiting: WaitingJobs,
        free: FreeSlots,
        *,
        may_start: Callable[[str], bool],
        kept_free: int,
        warm_wait_s: float,
    ) -> None:
        """`may_start`: whether an owner may start another job; one who may not is held until
        `WaitingJobs.release`. `kept_free`: how many slots are for owners who run nothing.
        """
        self.waiting = waiting
        self._free = free
        self._may_start = may_start
        self._kept_free = kept_free
        self._warm_wait_s = warm_wait_s
        self.wake_at: float | None = None
        """When there may be a choice though nothing has changed, after there was none."""

    def next(self, now: float) -> Chosen | None:
        """The job and a slot for it, if one may start. Both stay where they are."""
        self.wake_at = None
        if self._free.any() is None:
            return None
        only_idle = self._free.count <= self._kept_free
        while True:
            held: list[str] = []
            for job in self.waiting.candidates(_LOOK_AT, only_idle=only_idle):
                if not self._may_start(job.owner):
                    held.append(job.owner)
                elif (number := self._place_for(job, now)) is not None:
                    return Chosen(job, *self._free.take(number, job.checkpoint))
            for owner in held:
                self.waiting.hold(owner)
            if not held:
                return None  # else those behind them have come nearer

    def _place_for(self, job: Waiting, now: float) -> int | None:
        if job.checkpoint is None:
            return self._free.any()
        if (number := self._free.warm(job.checkpoint)) is not None:
            return number
        if (number := self._free.fresh()) is not None:
            return number
        if not self._free.is_warm(job.checkpoint):
            return self._free.unused()  # nobody to wait for
        if job.passed_at is None:
            job.passed_at = now
        if (wait_ends := job.passed_at + self._warm_wait_s) <= now:
            return self._free.unused()
        self.wake_at = min(wait_ends, self.wake_at or wait_ends)
        return None


def choice_for(
    endpoint: Endpoint, free: FreeSlots, running_jobs: RunningJobs, settings: DispatchSettings
) -> Choice:
    """For an endpoint of which no job waits yet. `running_jobs`: of all endpoints."""
    waiting = WaitingJobs(
        turn_cost=settings.fair_turn_cost,
        runs_some=lambda owner: running_jobs.of(owner, endpoint) > 0,
    )
    return Choice(
        waiting,
        free,
        may_start=running_jobs.may_start,
        kept_free=running_jobs.slots_kept_free(endpoint),
        warm_wait_s=settings.warm_wait_s,
    )
