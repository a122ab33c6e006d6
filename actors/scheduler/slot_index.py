"""SlotIndex: the free slots, the running jobs and the checkpoints of a pool's workers."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from actors.scheduler.slots import MinSet, Slot
from actors.scheduler.worker import Worker

WorkerSlot: TypeAlias = tuple[Worker, Slot]


class SlotIndex:
    """Finds workers and slots without a search of all workers. The pool calls `update` after each
    change of a worker.
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of further jobs that may start on all workers (see `Worker.free_slots`)."""
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
        """The running jobs, by the number of their worker."""

    def update(self, number: int, worker: Worker) -> None:
        """Note a change of a worker, of its slots, or of the checkpoints that it holds."""
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
        """Return the worker and the slot that run this job, or None."""
        return self._running.get(job_id)

    def is_warm(self, checkpoint: str) -> bool:
        """Return whether a worker that takes jobs holds the checkpoint, even without idle slots."""
        return bool(self._holders.get(checkpoint))

    def idle_holder_of(self, checkpoint: str) -> int | None:
        """Return a worker that holds the checkpoint and has an idle slot, or None."""
        holders = self._warm.get(checkpoint)
        return None if holders is None else holders.first

    def idle_without_checkpoint(self) -> int | None:
        """Return a worker with an idle slot that holds no checkpoint, or None."""
        return self._fresh.first

    def lowest_idle(self) -> int | None:
        """Return the lowest worker with an idle slot, or None. This choice lets workers with high
        numbers become idle, so that they can be closed.
        """
        return self._lowest.first

    def least_recently_used(self) -> int | None:
        """Return the least recently used worker with an idle slot, or None."""
        return next(iter(self._idle), None)

    def pick_slot(self, number: int, checkpoint: str | None) -> WorkerSlot:
        """Return an idle slot of a worker, and note that the worker will hold the checkpoint. The
        caller must reserve the slot.
        """
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
            # Another worker may run the job now.
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
