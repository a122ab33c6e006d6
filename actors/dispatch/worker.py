"""Workers: a placement group each, with one engine actor and its job actors inside it.

Everything has a name that can be computed, and outlives its maker: a dispatcher that takes over
finds the workers of its predecessor, and the jobs that run on them. A pending placement group is
what makes Ray's autoscaler add a GPU node.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.remote import NAMESPACE, EngineActor, JobActor
from actors.worker.config import WorkerConfig
from actors.worker.job import RunOutcome
from events.queue import QueueEntry
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 30.0
_RETRY_S = 1.0
ENGINE_ENVIRONMENT = {
    # Without these glibc returns every large buffer to the system, and two rows cost more than
    # twice one.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "1000000000",
    # Threads wait for each other by spinning, and where others are busy on the cores that takes the
    # cores from those they wait for. So for microseconds only: a small UNet call takes 6.9 ms
    # instead of 6.7 on two free cores, and 27 instead of 72 beside two busy processes; to sleep at
    # once (OMP_WAIT_POLICY) takes 26 and 47.
    "GOMP_SPINCOUNT": "3000",
}


class ActorDied(Exception):
    """A job actor's process ended in the middle of a job."""


class SlotState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"


class Slot:
    """One job actor of a worker, made again whenever it has served its time.

    One task at a time brings the actor up; `replace` ends that task before it begins another.
    """

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
        """The job it was given, or was found to run."""
        self.actor: str | None = None
        """The name under which the actor writes events."""
        self._create = create
        self._jobs_per_actor = jobs_per_actor
        self._on_change = on_change
        self._handle: Any = None
        self._jobs_run = 0
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to find or make the actor."""
        self._begin(self._bring_up())

    def replace(self) -> None:
        """Begin to kill the actor and to make another under its name. It runs nothing from now."""
        self.job_id = None
        self._begin(self._make_anew())

    async def close(self) -> None:
        await self.detach()
        await _kill(self.name)

    async def detach(self) -> None:
        """Leave the actor to whoever comes next."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.state = SlotState.STARTING

    def reserve(self, job_id: str) -> None:
        self.job_id = job_id
        self._become(SlotState.BUSY)

    def release(self) -> None:
        self.job_id = None
        self._become(SlotState.IDLE)

    async def run(self, entry: QueueEntry) -> RunOutcome:
        """Raises ActorDied."""
        self._jobs_run += 1
        try:
            return RunOutcome(await self._handle.run.remote(entry.job_id, entry.token))
        except RayError as error:
            raise ActorDied(str(error).splitlines()[0]) from error

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        """False where the actor does not answer, or no longer runs the job."""
        try:
            reference = self._handle.take_delivery.remote(entry.job_id, entry.token)
            return bool(await _answer(reference, timeout_s))
        except (RayError, TimeoutError):
            return False

    @property
    def is_worn(self) -> bool:
        return self._jobs_run >= self._jobs_per_actor

    def _begin(self, work: Any) -> None:
        if self._task is not None:
            self._task.cancel()
        self._become(SlotState.STARTING)
        self._task = asyncio.create_task(work, name=self.name)

    async def _make_anew(self) -> None:
        await _kill(self.name)
        await self._bring_up()

    async def _bring_up(self) -> None:
        while True:
            try:
                return await self._adopt()
            except (RayError, TimeoutError, ValueError) as error:
                fields = {"action": "slot_open", "slot": self.name, "error": str(error)}
                logger.warning("job actor did not start", extra=fields)
            await _kill(self.name)
            await asyncio.sleep(_RETRY_S)

    async def _adopt(self) -> None:
        """An actor that still runs a predecessor's job is waited for."""
        self._handle = await asyncio.to_thread(self._create, self.name)
        self.actor = await _answer(self._handle.ready.remote(), _START_TIMEOUT_S)
        self.job_id, self._jobs_run = await _answer(self._handle.state.remote())
        while self.job_id is not None:
            self._become(SlotState.BUSY)
            await self._handle.wait_idle.remote()
            self.job_id, self._jobs_run = await _answer(self._handle.state.remote())
        self._become(SlotState.IDLE)

    def _become(self, state: SlotState) -> None:
        self.state = state
        self._on_change()


class Worker:
    """One placement group of an endpoint."""

    def __init__(
        self,
        name: str,
        config: WorkerConfig,
        *,
        settings: DispatchSettings,
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.checkpoints: set[str] = set()
        """What its engine was asked for since it started."""
        self.slots: list[Slot] = []
        self.is_ready = False
        """Its engine answers. Not so: no job is given to it."""
        self.idle_since = time.monotonic()
        self._config = config
        self._endpoint = config.endpoint
        self._settings = settings
        self._on_change = on_change
        self._group: PlacementGroup | None = None
        self._engine: Any = None
        self._gpus = 0.0

    async def keep(self) -> None:
        """Open it, then watch its engine, until cancelled."""
        await self._persist(self._place)
        self.slots = [self._slot(number) for number in range(self._endpoint.jobs_per_worker)]
        try:
            await self._persist(self._find_or_make_engine)
            for slot in self.slots:
                slot.open()
            while True:
                await self._check_engine()
                await asyncio.sleep(_RETRY_S)
        finally:
            self.is_ready = False
            for slot in self.slots:
                await slot.detach()

    def idle_slot(self) -> Slot | None:
        if not self.is_ready:
            return None
        return next((slot for slot in self.slots if slot.state is SlotState.IDLE), None)

    def doubt(self) -> None:
        """An attempt failed by the engine: no further job until it has answered again."""
        self.is_ready = False

    def forget(self, job_id: str, attempt: int) -> None:
        """End a run whose job actor is gone."""
        if self._engine is not None:
            self._engine.cancel.remote(job_id, attempt)

    async def close(self) -> None:
        """Kill its actors and give the node back."""
        for name in await asyncio.to_thread(_actors_of, self.name):
            await _kill(name)
        group = self._group or await asyncio.to_thread(get_placement_group, self.name)
        await asyncio.to_thread(remove_placement_group, group)

    async def _persist(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await step()
            except (RayError, ValueError) as error:
                fields = {"action": "worker_open", "worker": self.name, "error": str(error)}
                logger.warning("worker did not open", extra=fields)
                await asyncio.sleep(_RETRY_S)

    async def _place(self) -> None:
        """Pending for as long as the cluster has no room."""
        self._gpus = await asyncio.to_thread(_gpus_of, self._endpoint)
        self._group = await asyncio.to_thread(self._find_or_make_group)
        while not await asyncio.to_thread(self._group.wait, 5):
            logger.info("waits for room", extra={"action": "place", "worker": self.name})

    async def _check_engine(self) -> None:
        try:
            await _answer(self._engine.steps_done.remote())
        except RayActorError as error:
            self.is_ready = False
            self.checkpoints.clear()
            fields = {"action": "engine_away", "worker": self.name, "error": str(error)}
            logger.warning("engine away", extra=fields)
            # Ray restarts it, unless it died for good: then this makes another of its name.
            await self._persist(self._find_or_make_engine)
        except (RayError, TimeoutError):
            self.is_ready = False
        else:
            if not self.is_ready:
                self.is_ready = True
                self._on_change()

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

    async def _find_or_make_engine(self) -> None:
        options = self._options(self._engine_name) | {
            "num_cpus": self._endpoint.cpus,
            "num_gpus": self._gpus,
            "max_restarts": -1,
            "runtime_env": {"env_vars": ENGINE_ENVIRONMENT},
        }
        device = "auto" if self._gpus else "cpu"
        make = EngineActor.options(**options).remote
        self._engine = await asyncio.to_thread(make, self._config, device=device)

    @property
    def _engine_name(self) -> str:
        return f"{self.name}:engine"

    def _slot(self, number: int) -> Slot:
        return Slot(
            f"{self.name}:job:{number}",
            create=self._make_job_actor,
            jobs_per_actor=self._settings.jobs_per_actor or (1 if self._gpus else 50),
            on_change=self._on_change,
        )

    def _make_job_actor(self, name: str) -> Any:
        return JobActor.options(**self._options(name)).remote(self._config, self._engine_name)


def worker_prefix(config: WorkerConfig) -> str:
    """Every worker that is made from this config has a name that begins so, and no other has."""
    digest = hashlib.blake2b(repr(config).encode(), digest_size=4).hexdigest()
    return f"{endpoint_prefix(config.endpoint.id)}{digest}:"


def endpoint_prefix(endpoint_id: str) -> str:
    return f"worker:{endpoint_id}:"


def worker_names(prefix: str) -> list[str]:
    """Names of the placement groups that there are, whoever made them."""
    groups = placement_group_table().values()
    return sorted(
        group["name"]
        for group in groups
        if group["name"].startswith(prefix) and group["state"] != "REMOVED"
    )


async def is_idle(worker_name: str) -> bool:
    """Whether none of its job actors runs a job."""
    for name in await asyncio.to_thread(_actors_of, worker_name):
        if ":job:" not in name:
            continue
        with suppress(RayError, TimeoutError, ValueError):
            handle: Any = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            job_id, _ = await _answer(handle.state.remote())
            if job_id is not None:
                return False
    return True


def _actors_of(worker_name: str) -> list[str]:
    named: Any = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["name"].startswith(f"{worker_name}:")]


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
    give_up_at = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        except ValueError:
            return
        await asyncio.to_thread(ray.kill, handle)
        await asyncio.sleep(0.05)
