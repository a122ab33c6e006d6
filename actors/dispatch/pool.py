"""WorkerPool: the workers of one endpoint, as many as its queue needs, within its bounds."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from actors.dispatch.cluster import ActorUnavailable, Cluster
from actors.dispatch.free_slots import FreeSlots
from actors.dispatch.names import endpoint_prefix, index_of, release_of, worker_name
from actors.dispatch.rollout import OtherReleases, Rollout, Step, end_costs
from actors.dispatch.slots import SlotNumbers
from actors.dispatch.startup import Pauses, Startup
from actors.dispatch.worker import Worker
from events.retry import keep_trying
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings

logger = logging.getLogger(__name__)

_KEEP = {"action": "worker_keep"}


class WorkerPool:
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        prefix: str,
        cluster: Cluster,
        settings: DispatchSettings,
        engine_silence_s: float,
        slots: SlotNumbers,
        worker_period_s: float = 1.0,
    ) -> None:
        """`prefix`: how the names of workers begin that are made as this endpoint's are now.

        `engine_silence_s`, `worker_period_s`: see `Worker`.
        """
        self.free = FreeSlots()
        """The slots of all workers, for whoever gives them jobs."""
        self._endpoint = endpoint
        self._prefix = prefix
        self._cluster = cluster
        self._settings = settings
        self._engine_silence_s = engine_silence_s
        self._slots = slots
        self._worker_period_s = worker_period_s
        self._workers: dict[int, Worker] = {}
        self._found: Collection[Worker] | None = None
        """Those of a predecessor, until they have said what they run; None until they are known."""
        self._found_at = time.monotonic()
        self._others = OtherReleases(cluster, endpoint.id)
        self._draining: Collection[str] = frozenset()
        """Workers whose node is about to be taken away, by name: others take their places."""
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._pauses = Pauses(
            first_s=settings.worker_retry_first_s, longest_s=settings.worker_retry_longest_s
        )
        self._last_trouble: str | None = None
        """Of the last worker that was given up, until another one is ready."""
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Returns when a slot or a worker changed since the last call, or `wake` was called."""
        await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        """Let `changed` return: a choice of a slot depends on more than the workers."""
        self._changed.set()

    def may_run(self, actor: str | None) -> bool:
        """Whether a job that this actor began may run though no slot is known to run it."""
        return self._found is None or bool(self._found) or self._others.have(actor)

    def trouble(self) -> str | None:
        """Why no worker is ready, for whoever waits for one; None if one is."""
        workers = self._workers.values()
        troubles = [worker.startup.trouble for worker in workers]
        # One that makes its next job actor is ready, unless its kind has not come up before.
        is_one_ready = not self._last_trouble and any(worker.is_ready for worker in workers)
        if None in troubles or is_one_ready:
            return None
        said = self._last_trouble or next(filter(None, troubles), "none is open")
        return f"No worker got ready: {said}."

    def told(self) -> list[dict[str, Any]]:
        """The workers, as JSON has them."""
        workers = [worker for _, worker in sorted(self._workers.items())]
        return [each.told() | {"is_current": not self._is_old(each)} for each in workers]

    async def keep(self, demand: Callable[[], Awaitable[int]]) -> None:
        """Open and close workers, until cancelled; then those that are open stay as they are.

        `demand`: how many jobs wait or run.
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
                    logger.warning("cluster is away", extra={**_KEEP, "error": str(error)})
                await asyncio.sleep(self._settings.endpoints_period_s)
        finally:
            for task in self._keeping.values():
                task.cancel()
            await asyncio.gather(*self._keeping.values(), return_exceptions=True)

    async def _take_over(self) -> None:
        """A predecessor's workers are ours now. Those that its endpoint had made otherwise run the
        same jobs, and are replaced one by one.
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
        """It is made otherwise than one would be made now."""
        return not worker.name.startswith(self._prefix)

    def _wanted(self, demand: int) -> int:
        """At once as many as the jobs would fill: each pending group asks for a node of its own."""
        endpoint, unknown = self._endpoint, self._slots.most_of(self._slots.expected)
        known = [worker.slots.most for worker in self._workers.values() if worker.is_ready]
        filled = math.ceil(demand / max(known, default=unknown))
        least = 0 if endpoint.draining else endpoint.min_workers
        return max(min(filled, endpoint.max_workers), least)

    @property
    def _lasting(self) -> int:
        """How many there are whose node is not about to be taken away."""
        return sum(worker.name not in self._draining for worker in self._workers.values())

    async def _leave_draining(self) -> None:
        """They get no more jobs; what they run ends there, or is tried again elsewhere."""
        prefix = endpoint_prefix(self._endpoint.id)
        self._draining = frozenset(await self._cluster.draining(prefix))
        for worker in self._workers.values():
            if worker.name in self._draining and not worker.is_leaving:
                logger.info("node drains", extra={"action": "worker_leave", "worker": worker.name})
                worker.leave()

    def _open_needed(self, wanted: int) -> None:
        """One that was given up is not replaced by another one before its pause is over."""
        missing = max(wanted - self._lasting, 0)
        for index in self._free_places(missing):
            if self._pauses.is_over(index):
                self._open(index, worker_name(self._prefix, index))

    def _free_places(self, most: int) -> list[int]:
        """The first indexes that no worker has."""
        indexes = range(len(self._workers) + most)
        return [index for index in indexes if index not in self._workers][:most]

    def _replace_next(self, wanted: int) -> None:
        """Go on with the replacement of workers that are made otherwise than they would be now.

        Not before those that were found had the time to say what they run.
        """
        room_wait_s = self._settings.worker_replace_s
        is_early = time.monotonic() - self._found_at < room_wait_s
        if is_early and not all(worker.is_heard for worker in self._found or ()):
            return
        self._found = ()
        old = [worker for worker in self._workers.values() if self._is_old(worker)]
        if not old:
            self._leave_surplus(max(wanted, self._endpoint.max_workers))
        rollout = Rollout(old, [each for each in self._workers.values() if not self._is_old(each)])
        step = rollout.step(wanted, room_wait_s=room_wait_s)
        if step is Step.LEAVE:
            rollout.leaves_next.leave()
        elif step is Step.OPEN:
            self._open_needed(self._lasting + 1)

    def _leave_surplus(self, most: int) -> None:
        """Where there may be fewer than before, those whose end costs least get no more jobs."""
        staying = [worker for worker in self._workers.values() if not worker.is_leaving]
        for worker in sorted(staying, key=end_costs)[: max(len(staying) - most, 0)]:
            worker.leave()

    def _open(self, index: int, name: str) -> None:
        worker = Worker(
            name,
            cluster=self._cluster,
            slots=self._slots,
            jobs_per_actor=self._settings.jobs_per_actor,
            startup=Startup(
                longest_s=self._settings.worker_start_s,
                most_deaths=self._settings.worker_start_deaths,
            ),
            engine_silence_s=self._engine_silence_s,
            on_change=partial(self._note_change, index),
            period_s=self._worker_period_s,
        )
        self._workers[index] = worker
        self._keeping[index] = asyncio.create_task(worker.keep(), name=worker.name)

    def _note_change(self, index: int) -> None:
        """A worker changed that may be closed already."""
        if (worker := self._workers.get(index)) is not None:
            self.free.update(index, worker)
        self._changed.set()

    async def _close_failed(self) -> None:
        """Give back the place of a worker that does not come up, for others and for another try."""
        for index, worker in list(self._workers.items()):
            if worker.startup.has_failed and not worker.is_busy:
                self._last_trouble = worker.startup.trouble
                fields = {
                    "action": "worker_give_up",
                    "worker": worker.name,
                    "error": worker.startup.trouble,
                    "pause_s": self._pauses.begin(index),
                }
                logger.warning("worker does not get ready", extra=fields)
                await self._close(index, has_failed=True)
            elif worker.startup.trouble is None:
                self._pauses.forget(index)
                self._last_trouble = None

    async def _close_unwanted(self, wanted: int) -> None:
        """Of workers that are not ready, those without a place go first, then the last opened."""
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
            elif now - worker.unwanted_since > self._settings.worker_unwanted_s:
                await self._close(index)

    async def _close_surplus(self, wanted: int) -> None:
        """Those beyond the wanted that idle longer than they may; at once where no jobs come."""
        endpoint, now = self._endpoint, time.monotonic()
        idle_s = self._settings.worker_idle_s
        if endpoint.idle_timeout_s is not None:
            idle_s = endpoint.idle_timeout_s
        if endpoint.draining:
            idle_s = math.inf if wanted else 0.0
        lasting = self._lasting  # counted once: it goes through all of them
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
        """Unless an actor that was found there, and has not been asked yet, runs a job."""
        if await self._cluster.is_idle(self._workers[index].name):
            await self._close(index)

    async def _close(self, index: int, *, has_failed: bool = False) -> None:
        worker, task = self._workers.pop(index), self._keeping.pop(index)
        self.free.remove(index)
        task.cancel()
        await asyncio.wait({task})
        await self._cluster.remove(worker.name, has_failed=has_failed)
        logger.info("closed", extra={"action": "worker_close", "worker": worker.name})
