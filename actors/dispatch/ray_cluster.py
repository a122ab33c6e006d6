"""RayCluster: an endpoint's workers as placement groups and detached actors of Ray.

A pending placement group is what makes Ray's autoscaler add a node, and removing it lets the node
go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.actor_deaths import ended_by_itself, first_line
from actors.dispatch.cluster import (
    ActorDied,
    ActorLost,
    ActorUnavailable,
    EngineActor,
    EngineGone,
    EngineRestarts,
    JobActor,
)
from actors.dispatch.names import engine_name, is_slot_name
from actors.dispatch.ray_calls import RayCalls
from actors.remote import NAMESPACE, EngineProcessActor, JobProcessActor
from actors.worker.config import WorkerConfig
from actors.worker.job import RunOutcome
from events.queue import QueueEntry

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 30.0
_ROOM_LOG_PERIOD_S = 5
ENGINE_ENVIRONMENT = {
    # Without these glibc returns every large buffer to the system, and two rows cost more than
    # twice one.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "1000000000",
    # Threads wait for each other by spinning, and if others are busy on the cores that takes the
    # cores from those they wait for. So for microseconds only: a small UNet call takes 6.9 ms
    # instead of 6.7 on two free cores, and 27 instead of 72 beside two busy processes; to sleep at
    # once (OMP_WAIT_POLICY) takes 26 and 47.
    "GOMP_SPINCOUNT": "3000",
}


class RayJobActor:
    """See `actors.dispatch.cluster.JobActor`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def ready(self) -> str:
        return str(await _answer(self._handle.ready, timeout_s=_START_TIMEOUT_S))

    async def state(self) -> tuple[str | None, int]:
        job_id, jobs_run = await _answer(self._handle.state)
        return job_id, jobs_run

    async def wait_idle(self) -> None:
        await _answer(self._handle.wait_idle, timeout_s=None)

    async def run(self, entry: QueueEntry) -> RunOutcome:
        try:
            return RunOutcome(await self._handle.run.remote(entry.job_id, entry.token))
        except RayError as error:
            died = ActorDied if ended_by_itself(error) else ActorLost
            raise died(first_line(error)) from error

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        try:
            take = self._handle.take_delivery
            return bool(await _answer(take, entry.job_id, entry.token, timeout_s=timeout_s))
        except ActorUnavailable:
            return False


class RayEngineActor:
    """See `actors.dispatch.cluster.EngineActor`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def check(self) -> None:
        try:
            await _answer(self._handle.check)
        except ActorUnavailable as error:
            if isinstance(error.__cause__, ActorUnavailableError):
                raise EngineRestarts(str(error)) from error
            if isinstance(error.__cause__, RayActorError):
                raise EngineGone(str(error)) from error
            raise

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        try:
            had_begun: bool | None = await _answer(self._handle.cancel, job_id, attempt)
            return had_begun
        except ActorUnavailable:
            return None


class RayCluster:
    """See `actors.dispatch.cluster.Cluster`."""

    def __init__(self, config: WorkerConfig, *, calls: RayCalls) -> None:
        self._config = config
        self._run = calls.run
        self._groups: dict[str, PlacementGroup] = {}
        self._gpus: dict[str, float] = {}
        """Of each worker, as it was placed: its cluster may have got other nodes since."""

    async def place(self, worker: str) -> float:
        group = await self._run(lambda: self._find_or_make_group(worker))
        await _wait_for_room(group, worker)
        self._groups[worker] = group
        [bundle] = await self._run(lambda: group.bundle_specs)
        self._gpus[worker] = float(bundle.get("GPU", 0.0))
        return self._gpus[worker]

    async def engine(self, worker: str) -> EngineActor:
        options = self._options(worker, engine_name(worker)) | {
            "num_cpus": self._config.endpoint.cpus,
            "num_gpus": self._gpus[worker],
            "max_restarts": -1,
            "runtime_env": {"env_vars": ENGINE_ENVIRONMENT},
        }
        device = "auto" if self._gpus[worker] else "cpu"
        make = EngineProcessActor.options(**options).remote
        return RayEngineActor(
            await self._run(lambda: make(self._config.for_engine(), device=device))
        )

    async def job_actor(self, worker: str, name: str) -> JobActor:
        make = JobProcessActor.options(**self._options(worker, name)).remote
        return RayJobActor(await self._run(lambda: make(self._config, engine_name(worker))))

    async def kill(self, name: str) -> None:
        give_up_at = time.monotonic() + _KILL_TIMEOUT_S
        while time.monotonic() < give_up_at:
            if not await self._run(partial(_kill, name)):
                return
            await asyncio.sleep(0.05)

    async def workers(self, prefix: str) -> list[str]:
        groups = (await self._run(placement_group_table)).values()
        return sorted(
            group["name"]
            for group in groups
            if group["name"].startswith(prefix) and group["state"] != "REMOVED"
        )

    async def is_idle(self, worker: str) -> bool:
        for name in filter(is_slot_name, await self._run(partial(_actors_of, worker))):
            with suppress(ActorUnavailable):
                handle = await self._run(partial(ray.get_actor, name, NAMESPACE))
                job_id, _ = await RayJobActor(handle).state()
                if job_id is not None:
                    return False
        return True

    async def remove(self, worker: str) -> None:
        for name in await self._run(partial(_actors_of, worker)):
            await self.kill(name)
        self._gpus.pop(worker, None)
        self._groups.pop(worker, None)
        await self._run(partial(_remove_group, worker))

    def _gpus_of_a_worker(self) -> float:
        if self._config.endpoint.gpus is not None:
            return self._config.endpoint.gpus
        return 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0

    def _find_or_make_group(self, worker: str) -> PlacementGroup:
        try:
            group: PlacementGroup = get_placement_group(worker)
        except ValueError:
            gpus = self._gpus_of_a_worker()
            bundle = {"CPU": self._config.endpoint.cpus} | ({"GPU": gpus} if gpus else {})
            group = placement_group([bundle], name=worker, lifetime="detached")
        return group

    def _options(self, worker: str, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_concurrency": 1000,
            "num_cpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._groups[worker], placement_group_bundle_index=0
            ),
        }


def _actors_of(worker: str) -> list[str]:
    named: Any = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["name"].startswith(f"{worker}:")]


def _remove_group(worker: str) -> None:
    """Nothing happens if there is none."""
    try:
        group = get_placement_group(worker)
    except ValueError:
        return
    remove_placement_group(group)


def _kill(name: str) -> bool:
    """Whether an actor had this name."""
    try:
        ray.kill(ray.get_actor(name, NAMESPACE))
    except ValueError:
        return False
    return True


async def _wait_for_room(group: PlacementGroup, worker: str) -> None:
    """One question to the cluster, however long it takes, and no thread that waits for its answer.

    Raises ActorUnavailable, also if the group is removed meanwhile.
    """
    waiting = asyncio.ensure_future(_ready(group))
    try:
        while not (await asyncio.wait({waiting}, timeout=_ROOM_LOG_PERIOD_S))[0]:
            logger.info("waits for room", extra={"action": "place", "worker": worker})
        waiting.result()
    except RayError as error:
        raise ActorUnavailable(str(error)) from error
    finally:
        waiting.cancel()


async def _ready(group: PlacementGroup) -> None:
    await group.ready()


async def _answer(
    method: Any, *arguments: object, timeout_s: float | None = _ANSWER_TIMEOUT_S
) -> Any:
    """The answer of an actor's method. Raises ActorUnavailable."""
    try:
        async with asyncio.timeout(timeout_s):
            return await method.remote(*arguments)
    except (RayError, TimeoutError) as error:
        raise ActorUnavailable(str(error) or type(error).__name__) from error
