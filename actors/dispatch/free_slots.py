"""FreeSlots: the slots that may take a job now, and those that run one, found without a search."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from actors.dispatch.slot import Slot
from actors.dispatch.worker import Worker
from actors.waiting.lowest import Lowest

Place: TypeAlias = tuple[Worker, Slot]


class FreeSlots:
    """Workers by number. Whoever changes one, or hears of a change of one, calls `update`."""

    def __init__(self) -> None:
        self.count = 0
        """How many further jobs may start: in slots that are idle, or as soon as they are open."""
        self._counts: dict[int, int] = {}
        self._idle: dict[int, Worker] = {}
        """Those that have an idle slot; the one that was used last is the last one."""
        self._lowest = Lowest()
        self._fresh = Lowest()
        """Of those that have an idle slot, those that hold no checkpoint."""
        self._warm: defaultdict[str, Lowest] = defaultdict(Lowest)
        """Of those that have an idle slot, those that hold a checkpoint."""
        self._holders: defaultdict[str, set[int]] = defaultdict(set)
        """Of all that take jobs, those that hold a checkpoint."""
        self._held: dict[int, frozenset[str]] = {}
        self._running: dict[str, Place] = {}
        self._jobs: dict[int, dict[str, Place]] = {}
        """The same by worker."""

    def update(self, number: int, worker: Worker) -> None:
        """Call it after each change of a worker, its slots, or the checkpoints that it holds."""
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
        """The worker is closed."""
        self.count -= self._counts.pop(number, 0)
        self._forget(number)
        self._note_jobs(number, {})

    def running(self, job_id: str) -> Place | None:
        """The slot that was given this job and has not said that it is done."""
        return self._running.get(job_id)

    def is_warm(self, checkpoint: str) -> bool:
        """Whether any worker that takes jobs holds it, with or without a free slot."""
        return bool(self._holders.get(checkpoint))

    def warm(self, checkpoint: str) -> int | None:
        """A worker that holds it and has an idle slot."""
        holders = self._warm.get(checkpoint)
        return None if holders is None else holders.first

    def fresh(self) -> int | None:
        """A worker with an idle slot that holds nothing yet."""
        return self._fresh.first

    def any(self) -> int | None:
        """The first worker with an idle slot, so that the last ones come to idle."""
        return self._lowest.first

    def unused(self) -> int | None:
        """The worker with an idle slot that was used least lately."""
        return next(iter(self._idle), None)

    def take(self, number: int, checkpoint: str | None) -> Place:
        """An idle slot of a worker, which is going to hold a checkpoint."""
        worker = self._idle.pop(number)
        self._idle[number] = worker
        slot = worker.idle_slot()
        assert slot is not None
        if checkpoint is not None and checkpoint not in worker.checkpoints:
            worker.checkpoints.add(checkpoint)
            self.update(number, worker)
        return worker, slot

    def _note_jobs(self, number: int, jobs: dict[str, Place]) -> None:
        for job_id, place in self._jobs.pop(number, {}).items():
            if self._running.get(job_id) is place:  # and not another worker's by now
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
