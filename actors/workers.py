"""Workers: a placement group each, with one engine actor and its job actors inside it.

Everything has a name that can be computed, in Ray's own namespace of ours, and outlives its maker:
a dispatcher that takes over finds the workers of its predecessor, and the jobs that run on them.
A pending placement group is what makes Ray's autoscaler add a GPU node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.job import RunOutcome
from actors.remote import NAMESPACE, EngineActor, JobActor
from events.records import Endpoint
from settings import Settings

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 120.0
_ENGINE_ENVIRONMENT = {
    # Without these glibc returns every large buffer to the system, and two rows cost more than
    # twice one.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "1000000000",
}


class ActorDied(Exception):
    """A job actor's process ended in the middle of a job."""


class SlotState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    CLOSED = "closed"


class Slot:
    """One job actor of a worker, made again whenever it has served its time."""

    def __init__(
        self,
        name: str,
        *,
        create: Callable[[str], Any],
        jobs_per_actor: int,
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.state = SlotState.STARTING
        self.job_id: str | None = None
        self.actor: str | None = None
        """The name under which the actor writes facts."""
        self._create = create
        self._jobs_per_actor = jobs_per_actor
        self._on_change = on_change
        self._handle: Any = None
        self._jobs_run = 0
        self._replacing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find or make the actor; one that still runs a predecessor's job is waited for."""
        self._handle = await asyncio.to_thread(self._create, self.name)
        self.actor = await _answer(self._handle.ready.remote(), _START_TIMEOUT_S)
        self.job_id, self._jobs_run = await _answer(self._handle.state.remote())
        while self.job_id is not None:
            self._become(SlotState.BUSY)
            await self._handle.wait_idle.remote()
            self.job_id, self._jobs_run = await _answer(self._handle.state.remote())
        self._become(SlotState.IDLE)

    def reserve(self, job_id: str) -> None:
        self.job_id = job_id
        self._become(SlotState.BUSY)

    def release(self) -> None:
        """The reserved job turned out to need no run."""
        self.job_id = None
        self._become(SlotState.IDLE)

    async def run(self, job_id: str, ack_subject: str) -> RunOutcome:
        """Raises ActorDied."""
        self._jobs_run += 1
        try:
            return RunOutcome(await self._handle.run.remote(job_id, ack_subject))
        except (RayActorError, RayTaskError) as error:
            raise ActorDied(str(error).splitlines()[0]) from error

    async def take_delivery(self, job_id: str, ack_subject: str, *, timeout_s: float) -> bool:
        """False where the actor does not answer, or no longer runs the job."""
        try:
            reference = self._handle.take_delivery.remote(job_id, ack_subject)
            return bool(await _answer(reference, timeout_s))
        except (RayActorError, RayTaskError, TimeoutError):
            return False

    @property
    def is_worn(self) -> bool:
        return self._jobs_run >= self._jobs_per_actor

    async def replace(self) -> None:
        """Kill the actor and start another under the same name; once, however many ask."""
        if self._replacing is None or self._replacing.done():
            self.job_id = None
            self._become(SlotState.STARTING)
            self._replacing = asyncio.create_task(self._replace())
        await asyncio.shield(self._replacing)

    async def _replace(self) -> None:
        await _kill(self.name)
        await self.open_persistently()

    async def open_persistently(self) -> None:
        while self.state is not SlotState.CLOSED:
            try:
                await self.open()
            except (RayActorError, RayTaskError, TimeoutError, ValueError) as error:
                logger.warning(
                    "job actor did not start",
                    extra={"action": "slot_open", "slot": self.name, "error": str(error)},
                )
                await _kill(self.name)
                await asyncio.sleep(0.5)
            else:
                return

    async def close(self) -> None:
        self._become(SlotState.CLOSED)
        await _kill(self.name)

    def _become(self, state: SlotState) -> None:
        if self.state is not SlotState.CLOSED:
            self.state = state
            self._on_change()


class Worker:
    """One placement group of an endpoint."""

    def __init__(
        self, endpoint: Endpoint, index: int, *, settings: Settings, on_change: Callable[[], None]
    ) -> None:
        self.index = index
        self.checkpoints: set[str] = set()
        """What its engine was last asked for."""
        self._endpoint = endpoint
        self._settings = settings
        self._on_change = on_change
        self._group: PlacementGroup | None = None
        self._engine: Any = None
        self._gpus = 0.0
        self.slots: list[Slot] = []
        self.idle_since = time.monotonic()

    @property
    def name(self) -> str:
        return worker_name(self._endpoint.id, self.index)

    async def open(self) -> None:
        """Returns once jobs can run; pending for as long as the cluster has no room."""
        self._gpus = await asyncio.to_thread(_gpus_of, self._endpoint)
        self._group = await asyncio.to_thread(self._find_or_make_group)
        while not await asyncio.to_thread(self._group.wait, 5):
            logger.info("waits for room", extra={"action": "place", "worker": self.name})
        self._engine = await asyncio.to_thread(self._make_engine)
        self.slots = [
            Slot(
                f"{self.name}:job:{number}",
                create=self._make_job_actor,
                jobs_per_actor=self._settings.jobs_per_actor or (1 if self._gpus else 50),
                on_change=self._on_change,
            )
            for number in range(self._endpoint.jobs_per_worker)
        ]
        await asyncio.gather(*(slot.open_persistently() for slot in self.slots))

    async def close(self) -> None:
        """Give the node back."""
        await asyncio.gather(*(slot.close() for slot in self.slots))
        await _kill(f"{self.name}:engine")
        if self._group is not None:
            await asyncio.to_thread(remove_placement_group, self._group)

    def _bundle(self) -> dict[str, float]:
        cpus = {"CPU": self._endpoint.cpus}
        return cpus | {"GPU": self._gpus} if self._gpus else cpus

    def _find_or_make_group(self) -> PlacementGroup:
        try:
            group: PlacementGroup = get_placement_group(self.name)
        except ValueError:
            group = placement_group([self._bundle()], name=self.name, lifetime="detached")
        return group

    def _options(self, name: str) -> dict[str, Any]:
        assert self._group is not None
        return {
            "name": name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_concurrency": 1000,
            "num_cpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=0
            ),
        }

    def _make_engine(self) -> Any:
        options = self._options(f"{self.name}:engine") | {
            "num_cpus": self._endpoint.cpus,
            "num_gpus": self._gpus,
            "max_restarts": -1,
            "runtime_env": {"env_vars": _ENGINE_ENVIRONMENT},
        }
        device = "auto" if self._gpus else "cpu"
        return EngineActor.options(**options).remote(self._settings, device=device)

    def _make_job_actor(self, name: str) -> Any:
        return JobActor.options(**self._options(name)).remote(
            self._settings, self._endpoint, self._engine
        )


class WorkerPool:
    """The workers of one endpoint: as many as its queue needs, within its bounds."""

    def __init__(self, endpoint: Endpoint, *, settings: Settings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._workers: dict[int, Worker] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def idle_slot(self, checkpoint: str | None) -> Slot | None:
        """A free slot, on a worker that has the checkpoint where there is one."""
        free = [
            (checkpoint not in worker.checkpoints, worker.index, slot, worker)
            for worker in self._workers.values()
            for slot in worker.slots
            if slot.state is SlotState.IDLE
        ]
        if not free:
            return None
        _, _, slot, worker = min(free, key=lambda each: each[:2])
        if checkpoint:
            worker.checkpoints.add(checkpoint)
        return slot

    def running(self, job_id: str) -> Slot | None:
        """The slot that believes it runs this job."""
        return next((slot for slot in self._slots() if slot.job_id == job_id), None)

    async def changed(self) -> None:
        """Returns when a slot changed since the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def keep(self, waiting: Callable[[], bool]) -> None:
        """Open and close workers: more while jobs wait and no slot is free, fewer when idle."""
        for index in range(self._endpoint.min_workers):
            self._open(index)
        while True:
            await asyncio.sleep(self._settings.endpoints_period_s)
            for index, task in list(self._opening.items()):
                if task.done():
                    del self._opening[index]
                    task.result()
            busy = all(slot.state is not SlotState.IDLE for slot in self._slots())
            if waiting() and busy and not self._opening:
                self._open_another()
            await self._close_idle()

    async def close(self) -> None:
        """Close every worker: the endpoint is gone."""
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))

    def _slots(self) -> list[Slot]:
        return [slot for worker in self._workers.values() for slot in worker.slots]

    def _open_another(self) -> None:
        free = (i for i in range(self._endpoint.max_workers) if i not in self._workers)
        if (index := next(free, None)) is not None:
            self._open(index)

    def _open(self, index: int) -> None:
        worker = Worker(self._endpoint, index, settings=self._settings, on_change=self._changed.set)
        self._workers[index] = worker
        self._opening[index] = asyncio.create_task(worker.open())

    async def _close_idle(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if worker.index in self._opening or any(
                s.state is SlotState.BUSY for s in worker.slots
            ):
                worker.idle_since = now
            elif (
                len(self._workers) > self._endpoint.min_workers
                and now - worker.idle_since > self._settings.worker_idle_s
            ):
                del self._workers[worker.index]
                await worker.close()


def worker_name(endpoint: str, index: int) -> str:
    return f"worker:{endpoint}:{index}"


def _gpus_of(endpoint: Endpoint) -> float:
    if endpoint.gpus is not None:
        return endpoint.gpus
    return 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0


async def _answer(reference: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
    async def wait() -> Any:
        return await reference

    return await asyncio.wait_for(wait(), timeout_s)


async def _kill(name: str) -> None:
    """Returns when no actor has this name any more."""
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        try:
            handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        except ValueError:
            return
        await asyncio.to_thread(ray.kill, handle)
        await asyncio.sleep(0.05)
