"""WorkerPool: opens and closes the workers of one endpoint according to its queue."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from actors.scheduler.cluster import ActorUnavailable, Cluster
from actors.scheduler.names import endpoint_prefix, index_of, release_of, worker_name
from actors.scheduler.slot_index import SlotIndex
from actors.scheduler.slots import SlotNumbers
from actors.scheduler.worker import JOBS_PER_ACTOR, Startup, Worker
from actors.worker.engine_process import ENGINE_ANSWER_TIMEOUT_S
from events.retry import keep_trying
from events.store.records import ENDPOINTS_PERIOD_S, Endpoint
from settings.constant import constant

logger = logging.getLogger(__name__)


_KEEP = {"action": "worker_keep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits by which a pool opens and closes workers."""

    period_s: float = ENDPOINTS_PERIOD_S
    """Seconds between two rounds of opening and closing."""
    unwanted_s: float = constant("WORKER_UNWANTED_S", 60.0)
    """Seconds after which a worker that is neither ready nor needed is closed. Until it is placed,
    the cluster tries to add a node for it.
    """
    start_s: float = constant("WORKER_START_S", 300.0)
    """Largest time in seconds until an engine answers. After this time its worker is closed."""
    start_deaths: int = constant("WORKER_START_DEATHS", 5)
    """Number of deaths of an engine after which its worker is closed. An answer of the engine
    resets the count.
    """
    retry_first_s: float = constant("WORKER_RETRY_FIRST_S", 10.0)
    """First pause in seconds before a worker that did not start is opened again. Each further pause
    is twice as long.
    """
    retry_longest_s: float = constant("WORKER_RETRY_LONGEST_S", 600.0)
    replace_s: float = constant("WORKER_REPLACE_S", 30.0)
    """Seconds for which a new worker waits to be placed after a change of its endpoint. Then an old
    worker leaves, so that its resources become free.
    """


class WorkerPool:
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        prefix: str,
        cluster: Cluster,
        idle_s: float,
        slots: SlotNumbers,
        limits: PoolLimits = PoolLimits(),
        jobs_per_actor: int = JOBS_PER_ACTOR,
        engine_silence_s: float = ENGINE_ANSWER_TIMEOUT_S,
        worker_period_s: float = 1.0,
    ) -> None:
        """The names of the workers that are made from the present config begin with `prefix`.
        Surplus workers are closed after `idle_s` idle seconds. See `Worker` for `jobs_per_actor`,
        `engine_silence_s` and `worker_period_s` (there `period_s`).
        """
        self.slot_index = SlotIndex()
        self._endpoint = endpoint
        self._prefix = prefix
        self._cluster = cluster
        self._idle_s = idle_s
        self._limits = limits
        self._jobs_per_actor = jobs_per_actor
        self._engine_silence_s = engine_silence_s
        self._slots = slots
        self._worker_period_s = worker_period_s
        self._workers: dict[int, Worker] = {}
        self._found: Collection[Worker] | None = None
        """The adopted workers, until all of them have reported. None before the adoption."""
        self._found_at = time.monotonic()
        self._others = OtherReleases(cluster, endpoint.id)
        self._draining: Collection[str] = frozenset()
        """Names of the workers whose node is about to be removed."""
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._pauses = Pauses(first_s=limits.retry_first_s, longest_s=limits.retry_longest_s)
        self._last_trouble: str | None = None
        """The trouble of the last worker that failed to start, until a worker has no trouble."""
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait until a slot or a worker has changed since the last call, or `wake` is called."""
        await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        """Make `changed` return, because waiting or running jobs have changed."""
        self._changed.set()

    def may_run(self, actor: str | None) -> bool:
        """Return whether this actor may run a job that is not in `slot_index`.

        The result is True until all adopted workers have reported their jobs, and for actors on
        workers of other releases.
        """
        return self._found is None or bool(self._found) or self._others.have(actor)

    def trouble(self) -> str | None:
        """Return the reason why no worker is ready, or None if one is ready."""
        workers = self._workers.values()
        troubles = [worker.startup.trouble for worker in workers]
        # A ready worker whose next job actor is starting has trouble. It counts as ready, unless a
        # worker failed to start and no worker has been without trouble since.
        is_one_ready = not self._last_trouble and any(worker.is_ready for worker in workers)
        if None in troubles or is_one_ready:
            return None
        reason = self._last_trouble or next(filter(None, troubles), "no worker is open")
        return f"No worker is ready: {reason}."

    def describe(self) -> list[dict[str, Any]]:
        """Return descriptions of the workers for JSON."""
        workers = [worker for _, worker in sorted(self._workers.items())]
        return [each.describe() | {"is_current": not self._is_old(each)} for each in workers]

    async def keep(self, demand: Callable[[], Awaitable[int]]) -> None:
        """Open and close workers until cancelled. Workers stay open at the end.

        `demand` returns the number of jobs that wait or run.
        """
        try:
            await keep_trying(self._take_over, on=ActorUnavailable, fields=_KEEP)
            while True:
                wanted = self._wanted(await demand())
                self._open_needed(wanted)
                self._replace_next(wanted)
                try:
                    await self._leave_draining()
                    await self._close_failed()
                    await self._close_unwanted(wanted)
                    await self._close_surplus(wanted)
                    await self._close_leaving()
                    await self._others.close(self._names())
                except ActorUnavailable as error:
                    logger.warning(
                        "the cluster is not available", extra={**_KEEP, "error": str(error)}
                    )
                await asyncio.sleep(self._limits.period_s)
        finally:
            for task in self._keeping.values():
                task.cancel()
            await asyncio.gather(*self._keeping.values(), return_exceptions=True)

    async def _take_over(self) -> None:
        """Adopt the workers of the previous dispatcher.

        Workers of the same release can run the same jobs, even if they were made from another
        config of the endpoint. They are adopted, too, and replaced one by one.
        """
        for name in await self._cluster.workers(self._prefix):
            self._open(index_of(name), name)
        for name in await self._cluster.workers(release_of(self._prefix)):
            if index_of(name) not in self._workers:
                self._open(index_of(name), name)
        await self._others.look(self._names())
        self._found, self._found_at = list(self._workers.values()), time.monotonic()

    def _names(self) -> set[str]:
        return {worker.name for worker in self._workers.values()}

    def _is_old(self, worker: Worker) -> bool:
        """Return whether the worker was made from an earlier config of the endpoint."""
        return not worker.name.startswith(self._prefix)

    def _wanted(self, demand: int) -> int:
        """Return the number of workers that the jobs need, within the bounds of the endpoint."""
        endpoint, unknown = self._endpoint, self._slots.most_of(self._slots.expected)
        known = [worker.slots.most for worker in self._workers.values() if worker.is_ready]
        filled = math.ceil(demand / max(known, default=unknown))
        least = 0 if endpoint.draining else endpoint.min_workers
        return max(min(filled, endpoint.max_workers), least)

    @property
    def _lasting(self) -> int:
        """Number of workers whose node is not about to be removed."""
        return sum(worker.name not in self._draining for worker in self._workers.values())

    async def _leave_draining(self) -> None:
        """Give no more jobs to workers whose node is about to be removed.

        A job that is still running when the node is removed gets another attempt.
        """
        prefix = endpoint_prefix(self._endpoint.id)
        self._draining = frozenset(await self._cluster.draining(prefix))
        for worker in self._workers.values():
            if worker.name in self._draining and not worker.is_leaving:
                logger.info(
                    "a worker is closed, because its node drains",
                    extra={"action": "worker_leave", "worker": worker.name},
                )
                worker.leave()

    def _open_needed(self, wanted: int) -> None:
        """Open all missing workers at once, because the cluster adds a node for each of them.

        A worker that failed to start is opened again after its pause.
        """
        missing = max(wanted - self._lasting, 0)
        for index in self._unused_indexes(missing):
            if self._pauses.is_over(index):
                self._open(index, worker_name(self._prefix, index))

    def _unused_indexes(self, most: int) -> list[int]:
        """Return the lowest unused indexes of workers."""
        indexes = range(len(self._workers) + most)
        return [index for index in indexes if index not in self._workers][:most]

    def _replace_next(self, wanted: int) -> None:
        """Take the next step of replacing old workers (see `Rollout`).

        The first step waits until all adopted workers have reported their jobs, but at most
        `replace_s`.
        """
        placement_wait_s = self._limits.replace_s
        is_early = time.monotonic() - self._found_at < placement_wait_s
        if is_early and not all(worker.has_reported for worker in self._found or ()):
            return
        self._found = ()
        old = [worker for worker in self._workers.values() if self._is_old(worker)]
        if not old:
            self._leave_surplus(max(wanted, self._endpoint.max_workers))
        rollout = Rollout(old, [each for each in self._workers.values() if not self._is_old(each)])
        step = rollout.step(wanted, placement_wait_s=placement_wait_s)
        if step is RolloutStep.LEAVE:
            rollout.leaves_next.leave()
        elif step is RolloutStep.OPEN:
            self._open_needed(self._lasting + 1)

    def _leave_surplus(self, most: int) -> None:
        """Let the workers above the number `most` leave, in the order of `end_costs`."""
        staying = [worker for worker in self._workers.values() if not worker.is_leaving]
        for worker in sorted(staying, key=end_costs)[: max(len(staying) - most, 0)]:
            worker.leave()

    def _open(self, index: int, name: str) -> None:
        worker = Worker(
            name,
            cluster=self._cluster,
            slots=self._slots,
            jobs_per_actor=self._jobs_per_actor,
            startup=Startup(
                longest_s=self._limits.start_s,
                most_deaths=self._limits.start_deaths,
            ),
            engine_silence_s=self._engine_silence_s,
            on_change=partial(self._note_change, index),
            period_s=self._worker_period_s,
        )
        self._workers[index] = worker
        self._keeping[index] = asyncio.create_task(worker.keep(), name=worker.name)

    def _note_change(self, index: int) -> None:
        """Note a change of a worker, which may be closed already."""
        if (worker := self._workers.get(index)) is not None:
            self.slot_index.update(index, worker)
        self._changed.set()

    async def _close_failed(self) -> None:
        """Close workers that failed to start. They are opened again after a pause."""
        for index, worker in list(self._workers.items()):
            if worker.startup.has_failed and not worker.is_busy:
                self._last_trouble = worker.startup.trouble
                fields = {
                    "action": "worker_give_up",
                    "worker": worker.name,
                    "error": worker.startup.trouble,
                    "pause_s": self._pauses.begin(index),
                }
                logger.warning("a worker did not start", extra=fields)
                await self._close(index, has_failed=True)
            elif worker.startup.trouble is None:
                self._pauses.forget(index)
                self._last_trouble = None

    async def _close_unwanted(self, wanted: int) -> None:
        """Close workers that are neither ready nor needed: first workers that are not placed, then
        workers with high indexes.
        """
        now = time.monotonic()
        starting = [
            index
            for index, worker in self._workers.items()
            if not worker.is_ready and not worker.is_busy
        ]
        starting.sort(key=lambda index: (self._workers[index].startup.is_placed, -index))
        is_replacing = any(map(self._is_old, self._workers.values()))
        unwanted = frozenset(starting[: max(self._lasting - wanted - is_replacing, 0)])
        for index, worker in list(self._workers.items()):
            if index not in unwanted:
                worker.unwanted_since = None
            elif worker.unwanted_since is None:
                worker.unwanted_since = now
            elif now - worker.unwanted_since > self._limits.unwanted_s:
                await self._close(index)

    async def _close_surplus(self, wanted: int) -> None:
        """Close surplus workers after their idle time, or at once if the endpoint drains."""
        endpoint, now = self._endpoint, time.monotonic()
        idle_s = self._idle_s
        if endpoint.idle_timeout_s is not None:
            idle_s = endpoint.idle_timeout_s
        if endpoint.draining:
            idle_s = math.inf if wanted else 0.0
        lasting = self._lasting  # The property is slow, because it reads all workers.
        for index, worker in sorted(self._workers.items(), reverse=True):
            if (task := self._keeping[index]).done():
                task.result()
            if not worker.is_ready or worker.is_busy:
                worker.idle_since = now
            elif lasting > wanted and now - worker.idle_since > idle_s:
                await self._close_idle(index)
                lasting = self._lasting

    async def _close_leaving(self) -> None:
        for index, worker in list(self._workers.items()):
            if worker.is_leaving and not worker.is_busy:
                await self._close_idle(index)

    async def _close_idle(self, index: int) -> None:
        """Close a worker, unless one of its job actors runs a job."""
        if await self._cluster.is_idle(self._workers[index].name):
            await self._close(index)

    async def _close(self, index: int, *, has_failed: bool = False) -> None:
        worker, task = self._workers.pop(index), self._keeping.pop(index)
        self.slot_index.remove(index)
        task.cancel()
        await asyncio.wait({task})
        await self._cluster.remove(worker.name, has_failed=has_failed)
        logger.info("a worker is closed", extra={"action": "worker_close", "worker": worker.name})


class RolloutStep(StrEnum):
    OPEN = "open"
    """Open another worker."""
    LEAVE = "leave"
    """Let an old worker leave."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The order in which old workers are replaced after a change of their endpoint.

    Workers are replaced one at a time. A new worker is opened first. When it is ready, an old
    worker leaves: it gets no more jobs and is closed after its jobs have ended. If the cluster
    cannot place another worker, an old worker leaves first. The endpoint continues to work with its
    old workers if the new workers do not start.
    """

    old: Collection[Worker]
    """Workers that were made from an earlier config."""
    new: Collection[Worker]

    def step(self, wanted: int, *, placement_wait_s: float) -> RolloutStep:
        """Return the next step while `wanted` workers are needed.

        If a new worker is not placed after `placement_wait_s` seconds, an old worker leaves.
        """
        if not self._staying or len(self._staying) < len(self.old):
            return RolloutStep.WAIT  # No old worker stays, or an old worker is already leaving.
        starting = [worker for worker in self.new if not worker.is_ready]
        if any(worker.startup.is_placed for worker in starting):
            return RolloutStep.WAIT
        if any(worker.startup.unplaced_s > placement_wait_s for worker in starting):
            return RolloutStep.LEAVE
        if starting:
            return RolloutStep.WAIT
        return RolloutStep.OPEN if len(self.old) + len(self.new) <= wanted else RolloutStep.LEAVE

    @property
    def leaves_next(self) -> Worker:
        """The old worker that is first by `end_costs`."""
        return min(self._staying, key=end_costs)

    @property
    def _staying(self) -> list[Worker]:
        return [worker for worker in self.old if not worker.is_leaving]


def end_costs(worker: Worker) -> tuple[bool, bool]:
    """Return the sort key for closing workers: idle before busy, then unready before ready."""
    return worker.is_busy, worker.is_ready


class OtherReleases:
    """Workers of an endpoint that were made by another version or with other settings. They get no
    jobs, and are removed after their jobs have ended.
    """

    def __init__(self, cluster: Cluster, endpoint_id: str) -> None:
        self._cluster = cluster
        self._prefix = endpoint_prefix(endpoint_id)
        self._workers: Collection[str] = ()

    def have(self, actor: str | None) -> bool:
        """Return whether the actor that writes events under this name is on one of the workers."""
        return actor is not None and any(actor.startswith(f"{each}:") for each in self._workers)

    async def look(self, ours: Iterable[str]) -> None:
        """Find the workers of the endpoint that are not in `ours`. Raises ActorUnavailable."""
        self._workers = set(await self._cluster.workers(self._prefix)) - set(ours)

    async def close(self, ours: Iterable[str]) -> None:
        """Remove the workers of other releases that run no job. Raises ActorUnavailable."""
        await self.look(ours)
        for worker in sorted(self._workers):
            if await self._cluster.is_idle(worker):
                await self._cluster.remove(worker)


class Pauses:
    """Pauses before a worker that failed to start is opened again."""

    def __init__(
        self, *, first_s: float, longest_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """The pauses of a worker double from `first_s` up to `longest_s` seconds."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._pauses: dict[int, tuple[float, float]] = {}
        """Length and end of the last pause, by the index of the worker."""

    def begin(self, index: int) -> float:
        """Begin a pause and return its length in seconds."""
        last_s, _ = self._pauses.get(index, (self._first_s / 2, 0.0))
        pause_s = min(2 * last_s, self._longest_s)
        self._pauses[index] = (pause_s, self._clock() + pause_s)
        return pause_s

    def is_over(self, index: int) -> bool:
        return index not in self._pauses or self._clock() >= self._pauses[index][1]

    def forget(self, index: int) -> None:
        """Note that a worker has started, so its next pause is short again."""
        self._pauses.pop(index, None)
