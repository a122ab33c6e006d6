"""Placement: chooses the waiting job that starts next, and its worker and slot.

A job prefers a worker that holds its checkpoint (delay scheduling: M. Zaharia et al., 2010). If all
such workers are busy, the job waits for some seconds. The job keeps its position, but other jobs
near the head of the order may start before it. After the wait the job takes any worker. Without the
wait, jobs with different checkpoints would make each worker load again and again. If the wait were
too long, slots would stay empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from actors.scheduler.fairness import RunningJobs, WaitingJob, WaitingJobs
from actors.scheduler.slots import MinSet, Slot
from actors.scheduler.worker import Worker
from events.store.records import Endpoint
from settings.constant import constant

_FAIR_QUANTUM = constant("FAIR_QUANTUM", 10.0)
"""Megapixel-steps that an owner of weight 1 may spend in a round of deficit round robin. A job with
a higher cost delays the next job of its owner by several rounds.
"""
_WARM_WAIT_S = constant("WARM_WAIT_S", 3.0)
"""Seconds for which a job waits for a worker that holds its checkpoint, while other workers have
room but would have to load the checkpoint. The best value is a fifth to a half of the time of a
load.
"""
_CANDIDATES = 16
"""Number of owners whose jobs are considered in one placement."""

WorkerSlot: TypeAlias = tuple[Worker, Slot]


@dataclass(frozen=True, slots=True)
class Placement:
    job: WaitingJob
    worker: Worker
    slot: Slot


class Placer:
    def __init__(
        self,
        waiting: WaitingJobs,
        free: SlotIndex,
        *,
        may_start: Callable[[str], bool],
        kept_free: int,
        warm_wait_s: float,
    ) -> None:
        """Create a placer that gives `waiting` jobs `free` slots.

        `may_start` returns whether an owner may start another job. If not, the owner is held until
        `WaitingJobs.release`. The last `kept_free` slots are only for owners who run nothing. A job
        waits up to `warm_wait_s` seconds for a worker that holds its checkpoint.
        """
        self.waiting = waiting
        self._free = free
        self._may_start = may_start
        self._kept_free = kept_free
        self._warm_wait_s = warm_wait_s
        self.wake_at: float | None = None
        """If `next` returned None, the time at which it should be called again even without a
        change. None if only a change can start a job.
        """

    def next(self, now: float) -> Placement | None:
        """The next job and a slot for it, or None if no job may start now.

        The job stays in `waiting`, and the slot stays idle, until the caller takes both.
        """
        self.wake_at = None
        if self._free.lowest_idle() is None:
            return None
        # The last free slots are only for owners who run nothing. So an owner with a large backlog
        # cannot occupy all slots with long jobs, and the first job of another owner starts at once.
        only_idle = self._free.count <= self._kept_free
        while True:
            held: list[str] = []
            for job in self.waiting.candidates(_CANDIDATES, only_idle=only_idle):
                if not self._may_start(job.owner):
                    held.append(job.owner)
                elif (number := self._worker_for(job, now)) is not None:
                    return Placement(job, *self._free.take(number, job.checkpoint))
            for owner in held:
                self.waiting.hold(owner)
            if not held:
                return None
            # The held owners are no candidates in the next pass of this loop.

    def _worker_for(self, job: WaitingJob, now: float) -> int | None:
        """The number of a worker with an idle slot, or None if the job waits for a warm worker."""
        if job.checkpoint is None:
            return self._free.lowest_idle()
        if (number := self._free.idle_holder_of(job.checkpoint)) is not None:
            return number
        if (number := self._free.idle_without_checkpoint()) is not None:
            return number
        if not self._free.is_warm(job.checkpoint):
            # No worker has the checkpoint in memory, so a wait would be useless.
            return self._free.least_recently_used()
        if job.passed_at is None:
            job.passed_at = now
        if (wait_ends := job.passed_at + self._warm_wait_s) <= now:
            return self._free.least_recently_used()
        self.wake_at = min(wait_ends, self.wake_at or wait_ends)
        return None


def placer_for(endpoint: Endpoint, free: SlotIndex, running_jobs: RunningJobs) -> Placer:
    """A placer for an endpoint, without waiting jobs. `running_jobs` counts the jobs of all
    endpoints.
    """
    waiting = WaitingJobs(
        quantum=_FAIR_QUANTUM,
        runs_some=lambda owner: running_jobs.count(owner, endpoint) > 0,
    )
    return Placer(
        waiting,
        free,
        may_start=running_jobs.may_start,
        kept_free=running_jobs.slots_kept_free(endpoint),
        warm_wait_s=_WARM_WAIT_S,
    )


class SlotIndex:
    """An index of the free slots and the checkpoints of a pool's workers.

    The pool calls `update` after each change of a worker, so that no method has to search all
    workers.
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of further jobs that may start, in idle slots or in slots that can be opened."""
        self._counts: dict[int, int] = {}
        self._idle: dict[int, Worker] = {}
        """Workers with an idle slot, by number. The most recently used worker is last."""
        self._lowest = MinSet()
        """Numbers of the workers with an idle slot."""
        self._fresh = MinSet()
        """Numbers of the workers with an idle slot that hold no checkpoint."""
        self._warm: defaultdict[str, MinSet] = defaultdict(MinSet)
        """Numbers of the workers with an idle slot, by checkpoint that they hold."""
        self._holders: defaultdict[str, set[int]] = defaultdict(set)
        """Numbers of all workers that take jobs, by checkpoint that they hold."""
        self._held: dict[int, frozenset[str]] = {}
        self._running: dict[str, WorkerSlot] = {}
        self._jobs: dict[int, dict[str, WorkerSlot]] = {}
        """The running jobs by worker."""

    def update(self, number: int, worker: Worker) -> None:
        """Note a change of a worker, its slots, or the checkpoints that it holds."""
        jobs = {slot.job_id: (worker, slot) for slot in worker.slots if slot.job_id is not None}
        self._note_jobs(number, jobs)
        free = worker.free_slots()
        self.count += free - self._counts.get(number, 0)
        self._counts[number] = free
        is_idle = worker.idle_slot() is not None
        held = frozenset(worker.checkpoints) if worker.takes_jobs else None
        if held != self._held.get(number) or is_idle != (number in self._idle):
            self._forget(number)
            self._note(number, worker, held, is_idle=is_idle)

    def remove(self, number: int) -> None:
        self.count -= self._counts.pop(number, 0)
        self._forget(number)
        self._note_jobs(number, {})

    def slot_of(self, job_id: str) -> WorkerSlot | None:
        """The worker and the slot that run this job, or None."""
        return self._running.get(job_id)

    def is_warm(self, checkpoint: str) -> bool:
        """Whether a worker that takes jobs holds the checkpoint, with or without an idle slot."""
        return bool(self._holders.get(checkpoint))

    def idle_holder_of(self, checkpoint: str) -> int | None:
        """A worker that holds the checkpoint and has an idle slot."""
        holders = self._warm.get(checkpoint)
        return None if holders is None else holders.first

    def idle_without_checkpoint(self) -> int | None:
        """A worker with an idle slot that holds no checkpoint."""
        return self._fresh.first

    def lowest_idle(self) -> int | None:
        """The worker with the lowest number that has an idle slot. With this choice workers with
        high numbers become idle and can be closed.
        """
        return self._lowest.first

    def least_recently_used(self) -> int | None:
        """The least recently used worker with an idle slot."""
        return next(iter(self._idle), None)

    def take(self, number: int, checkpoint: str | None) -> WorkerSlot:
        """An idle slot of a worker. The worker then counts as a holder of the checkpoint."""
        worker = self._idle.pop(number)
        self._idle[number] = worker
        slot = worker.idle_slot()
        assert slot is not None
        if checkpoint is not None and checkpoint not in worker.checkpoints:
            worker.checkpoints.add(checkpoint)
            self.update(number, worker)
        return worker, slot

    def _note_jobs(self, number: int, jobs: dict[str, WorkerSlot]) -> None:
        for job_id, worker_slot in self._jobs.pop(number, {}).items():
            # If another worker runs the job now, the entry of that worker stays.
            if self._running.get(job_id) is worker_slot:
                del self._running[job_id]
        if jobs:
            self._running |= jobs
            self._jobs[number] = jobs

    def _forget(self, number: int) -> None:
        self._idle.pop(number, None)
        self._lowest.discard(number)
        self._fresh.discard(number)
        for checkpoint in self._held.pop(number, ()):
            self._warm[checkpoint].discard(number)
            self._holders[checkpoint].discard(number)
            if not self._holders[checkpoint]:
                del self._holders[checkpoint], self._warm[checkpoint]

    def _note(
        self, number: int, worker: Worker, held: frozenset[str] | None, *, is_idle: bool
    ) -> None:
        if held is None:
            return
        self._held[number] = held
        for checkpoint in held:
            self._holders[checkpoint].add(number)
        if not is_idle:
            return
        self._idle[number] = worker
        self._lowest.add(number)
        if not held:
            self._fresh.add(number)
        for checkpoint in held:
            self._warm[checkpoint].add(number)
