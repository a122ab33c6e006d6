"""RayCluster: an endpoint's workers as placement groups and detached actors of Ray.

A pending placement group is what makes Ray's autoscaler add a node, and removing it lets the node
go.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray._private.state import state as global_state
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.dispatch.cluster import (
    ActorUnavailable,
    EngineActor,
    JobActor,
)
from actors.dispatch.names import engine_name, is_slot_name, slot_number, standby_name
from actors.dispatch.ray_actors import RayEngineActor, RayJobActor, Silences, answer
from actors.dispatch.ray_calls import RayCalls
from actors.remote import EngineProcessActor, JobProcessActor
from actors.remote_engine import NAMESPACE
from actors.worker.config import WorkerConfig
from actors.worker.engine_host import EngineState

logger = logging.getLogger(__name__)

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
    # Whether there is a GPU is asked of the driver's library for management: what stands by loads
    # torch, and must not take any of the GPU's memory.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


class RayCluster:
    """See `actors.dispatch.cluster.Cluster`."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        calls: RayCalls,
        on_engine: Callable[[str, EngineState], None] = lambda _worker, _state: None,
    ) -> None:
        """`on_engine` is told what the engine of a worker says of itself, each time it does."""
        self._on_engine = on_engine
        self._config = config
        self._run = calls.run
        self._groups: dict[str, PlacementGroup] = {}
        self._bundles: dict[str, Mapping[str, float]] = {}
        """What each worker takes, as it was placed: its cluster may have got other nodes since, and
        its endpoint other values.
        """
        self._silences = Silences()
        self._failed_on: dict[str, str] = {}
        """The node on which a worker did not come up the last time."""

    async def place(self, worker: str) -> float:
        group = await self._run(lambda: self._find_or_make_group(worker))
        await _wait_for_room(group, worker)
        self._groups[worker] = group
        [self._bundles[worker]] = await self._run(lambda: group.bundle_specs)
        return self._gpus(worker)

    async def engine(self, worker: str) -> EngineActor:
        cpus, gpus = float(self._bundles[worker].get("CPU", 0.0)), self._gpus(worker)
        options = self._engine_options(worker, engine_name(worker), cpus=cpus, gpus=gpus)
        make = EngineProcessActor.options(**options).remote
        device = self._device(worker)
        handles = [await self._run(lambda: make(self._config.for_engine(), device=device))]
        with suppress(ActorUnavailable):
            name = standby_name(worker)
            handles.append(await self._run(partial(ray.get_actor, name, NAMESPACE)))
        return RayEngineActor(
            *handles,
            add_standby=partial(self._add_standby, worker),
            end=self._end_process,
            on_state=partial(self._on_engine, worker),
        )

    async def _add_standby(self, worker: str, engine: Any) -> None:
        """Make the second process of a worker, once the first one is up. It is only of use later:
        where it cannot be made, there is none.
        """
        with suppress(ActorUnavailable):
            devices = await answer(engine.standby_devices)
            if devices is None:
                return
            options = self._engine_options(worker, standby_name(worker))
            make = EngineProcessActor.options(**options).remote
            config, device = self._config.for_engine(), self._device(worker)
            await self._run(lambda: make(config, device=device, devices=devices))

    async def _end_process(self, actor: Any) -> None:
        """Ray makes it anew."""
        await self._run(partial(ray.kill, actor, no_restart=False))

    def _engine_options(
        self, worker: str, name: str, *, cpus: float = 0, gpus: float = 0
    ) -> dict[str, Any]:
        return self._options(worker, name) | {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_restarts": -1,
            "runtime_env": {"env_vars": ENGINE_ENVIRONMENT},
        }

    def _device(self, worker: str) -> str:
        return "auto" if self._gpus(worker) else "cpu"

    def _gpus(self, worker: str) -> float:
        return float(self._bundles[worker].get("GPU", 0.0))

    async def slots(self, worker: str) -> list[int]:
        names = filter(is_slot_name, await self._run(partial(_actors_of, worker)))
        return sorted(map(slot_number, names))

    async def job_actor(self, worker: str, name: str) -> JobActor:
        make = JobProcessActor.options(**self._options(worker, name)).remote
        engines = (engine_name(worker), standby_name(worker))
        return RayJobActor(await self._run(lambda: make(self._config, engines)))

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

    async def draining(self, prefix: str) -> list[str]:
        nodes = await self._run(global_state.get_draining_nodes)
        groups = (await self._run(placement_group_table)).values() if nodes else ()
        return [
            group["name"]
            for group in groups
            if group["name"].startswith(prefix)
            and group["state"] != "REMOVED"
            and nodes.keys() & group["bundles_to_node_id"].values()
        ]

    async def is_idle(self, worker: str) -> bool:
        for name in filter(is_slot_name, await self._run(partial(_actors_of, worker))):
            try:
                handle = await self._run(partial(ray.get_actor, name, NAMESPACE))
            except ActorUnavailable as error:
                if not isinstance(error.__cause__, ValueError):  # which says that it is gone
                    raise
            else:
                if await self._silences.may_run_job(name, RayJobActor(handle)):
                    return False
        return True

    async def remove(self, worker: str, *, has_failed: bool = False) -> None:
        self._failed_on.pop(worker, None)
        if has_failed and (node := await self._run(partial(_node_of, worker))):
            self._failed_on[worker] = node
        for name in await self._run(partial(_actors_of, worker)):
            await self.kill(name)
        self._bundles.pop(worker, None)
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
            endpoint, gpus = self._config.endpoint, self._gpus_of_a_worker()
            bundle = {"CPU": endpoint.cpus} | ({"GPU": gpus} if gpus else {})
            bundle |= endpoint.resources or {}
            group = placement_group(
                [bundle],
                strategy="STRICT_PACK",  # the target counts for no other
                name=worker,
                lifetime="detached",
                _soft_target_node_id=self._other_node(worker, bundle),
                bundle_label_selector=[dict(endpoint.labels)] if endpoint.labels else None,
            )
        return group

    def _other_node(self, worker: str, bundle: Mapping[str, float]) -> str | None:
        """One that is large enough, and not that on which the worker did not come up."""
        if (failed_on := self._failed_on.get(worker)) is None or self._config.endpoint.labels:
            return None  # which nodes have the labels, Ray knows
        nodes = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"]
            and node["NodeID"] != failed_on
            and all(node["Resources"].get(name, 0) >= amount for name, amount in bundle.items())
        ]
        return random.choice(nodes) if nodes else None

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


def _node_of(worker: str) -> str | None:
    """None where it has no place now."""
    try:
        group = get_placement_group(worker)
    except ValueError:
        return None
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return nodes.get(0)


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
