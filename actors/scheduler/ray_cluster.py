"""RayCluster: the workers of an endpoint as placement groups and detached actors of Ray.

A pending placement group makes Ray's autoscaler add a node. When the group is removed, the
autoscaler can release the node.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import ray
from pydantic import SecretStr
from ray._private.state import state as global_state
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.scheduler.cluster import (
    ActorDied,
    ActorLost,
    ActorUnavailable,
    EngineActor,
    EngineGone,
    EngineRestarts,
    JobActor,
)
from actors.scheduler.names import (
    engine_name,
    is_slot_name,
    slot_number,
    standby_name,
    worker_prefix,
)
from actors.worker.comfyui_engine import ComfyUIEngineActor
from actors.worker.config import WorkerConfig
from actors.worker.engine_process import (
    NAMESPACE,
    EngineDied,
    EngineProcessActor,
    EngineState,
    ended_by_itself,
    first_line,
)
from actors.worker.job_actor import JobProcessActor, RunOutcome
from engine.interface import is_machine_error
from events.bus.queues import QueueEntry
from events.errors import DatabaseUnavailable
from events.job import Job
from events.log import utc_now
from events.store.records import Endpoint
from settings.constant import constant

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KILL_TIMEOUT_S = 30.0
_ATTACHED_CPUS = 0.01
"""CPUs of a worker whose ComfyUI server was not started by Darkroom. A bundle cannot be empty."""
_PLACEMENT_LOG_PERIOD_S = 5
ENGINE_ENVIRONMENT = {
    # Without these settings glibc returns every large buffer to the system, and a batch of two rows
    # takes more than twice the time of one row.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "1000000000",
    # OpenMP threads spin while they wait for each other. On busy cores, a spinning thread takes the
    # core from the thread for which it waits. With this setting threads spin for microseconds only.
    # A small UNet call then takes 6.9 ms instead of 6.7 ms on two free cores, and 27 ms instead of
    # 72 ms beside two busy processes. Without spinning (OMP_WAIT_POLICY) it takes 26 ms and 47 ms.
    "GOMP_SPINCOUNT": "3000",
    # With this setting torch detects a GPU with the driver's management library and allocates no
    # GPU memory. The standby imports torch and must not allocate GPU memory.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Calls have many numbers of rows and sizes. With segments that grow, the freed memory of one
    # size serves another. Without, torch frees all cached memory and waits for the GPU.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


async def _keep_nothing(*_: object) -> None:
    pass


class RayCluster:
    """See `actors.scheduler.cluster.Cluster`."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        calls: RayCalls,
        on_engine: Callable[[str, str, EngineState], None] = lambda *_: None,
        keep_object_info: Callable[[Endpoint, str, bytes], Awaitable[None]] = _keep_nothing,
    ) -> None:
        """`on_engine` is called with the endpoint, the worker, and each state of its engine.

        `keep_object_info` stores the node types of a ComfyUI server. It is called with the digest
        and the content, and may raise DatabaseUnavailable.
        """
        self._on_engine = on_engine
        self._keep_object_info = keep_object_info
        self._config = config
        self._run = calls.run
        self._groups: dict[str, PlacementGroup] = {}
        self._bundles: dict[str, Mapping[str, float]] = {}
        """Resources of the placement group of each worker. They may differ from the present config.
        """
        self._silences = Silences()
        self._failed_on: dict[str, str] = {}
        """The node on which a worker last failed to start, by worker."""

    async def place(self, worker: str) -> float:
        group = await self._run(lambda: self._find_or_make_group(worker))
        await _wait_until_placed(group, worker)
        self._groups[worker] = group
        [self._bundles[worker]] = await self._run(lambda: group.bundle_specs)
        return self._gpus(worker)

    async def engine(self, worker: str) -> EngineActor:
        cpus, gpus = float(self._bundles[worker].get("CPU", 0.0)), self._gpus(worker)
        options = self._engine_options(worker, engine_name(worker), cpus=cpus, gpus=gpus)
        device = self._device(worker)
        is_comfyui = self._config.endpoint.engine == "comfyui"
        process = ComfyUIEngineActor if is_comfyui else EngineProcessActor
        make = process.options(**options).remote
        handles = [await self._run(lambda: make(self._config.for_engine(), device=device))]
        with suppress(ActorUnavailable):
            name = standby_name(worker)
            handles.append(await self._run(partial(ray.get_actor, name, NAMESPACE)))
        return RayEngineActor(
            *handles,
            add_standby=partial(self._add_standby, worker),
            end=self._end_process,
            on_state=partial(self._on_engine, self._config.endpoint.id, worker),
            keep_object_info=self._keeper(worker),
        )

    def _keeper(self, worker: str) -> Callable[[str, bytes], Awaitable[None]]:
        """Return the function that stores the node types of a worker.

        Those of a worker with an earlier config are of another server, and are not stored.
        """
        if not worker.startswith(worker_prefix(self._config)):
            return _keep_nothing
        return partial(self._keep_object_info, self._config.endpoint)

    async def _add_standby(self, worker: str, engine: Any) -> None:
        """Make the standby of a started engine, if the workers on its machine have a standby."""
        with suppress(ActorUnavailable):
            devices = await answer(engine.standby_devices)
            if devices is None:
                return
            options = self._engine_options(worker, standby_name(worker))
            make = EngineProcessActor.options(**options).remote
            config, device = self._config.for_engine(), self._device(worker)
            await self._run(lambda: make(config, device=device, devices=devices))

    async def _end_process(self, actor: Any) -> None:
        """Kill an engine process. Ray restarts it."""
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
        return "cuda" if self._gpus(worker) else "cpu"

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
                # A ValueError means that the actor no longer exists.
                if not isinstance(error.__cause__, ValueError):
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
        if self._config.endpoint.comfyui_url is not None:
            return 0.0  # The server has its own device.
        if self._config.endpoint.gpus is not None:
            return self._config.endpoint.gpus
        return 1.0 if ray.cluster_resources().get("GPU", 0) >= 1 else 0.0

    def _find_or_make_group(self, worker: str) -> PlacementGroup:
        try:
            group: PlacementGroup = get_placement_group(worker)
        except ValueError:
            endpoint, gpus = self._config.endpoint, self._gpus_of_a_worker()
            cpus = endpoint.cpus if endpoint.comfyui_url is None else _ATTACHED_CPUS
            bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
            bundle |= endpoint.resources or {}
            group = placement_group(
                [bundle],
                strategy="STRICT_PACK",  # Ray supports a soft target node only with this strategy.
                name=worker,
                lifetime="detached",
                _soft_target_node_id=self._other_node(worker, bundle),
                bundle_label_selector=[dict(endpoint.labels)] if endpoint.labels else None,
            )
        return group

    def _other_node(self, worker: str, bundle: Mapping[str, float]) -> str | None:
        """Return a node with enough resources other than that on which the worker failed to start,
        or None.
        """
        if (failed_on := self._failed_on.get(worker)) is None or self._config.endpoint.labels:
            return None  # Only Ray can decide which nodes match the labels.
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
    """Return the node of a worker, or None if the worker is not placed."""
    try:
        group = get_placement_group(worker)
    except ValueError:
        return None
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return nodes.get(0)


def _remove_group(worker: str) -> None:
    """Remove the placement group of a worker if it exists."""
    try:
        group = get_placement_group(worker)
    except ValueError:
        return
    remove_placement_group(group)


def _kill(name: str) -> bool:
    """Kill an actor. Returns whether an actor with this name existed."""
    try:
        ray.kill(ray.get_actor(name, NAMESPACE))
    except ValueError:
        return False
    return True


async def _wait_until_placed(group: PlacementGroup, worker: str) -> None:
    """Wait until a placement group is ready, without a thread.

    Raises ActorUnavailable, for example if the group is removed during the wait.
    """
    waiting = asyncio.ensure_future(_ready(group))
    try:
        while not (await asyncio.wait({waiting}, timeout=_PLACEMENT_LOG_PERIOD_S))[0]:
            logger.info("a worker waits for room", extra={"action": "place", "worker": worker})
        waiting.result()
    except RayError as error:
        raise ActorUnavailable(str(error)) from error
    finally:
        waiting.cancel()


async def _ready(group: PlacementGroup) -> None:
    await group.ready()


_ANSWER_TIMEOUT_S = 10.0
_MOST_PASSED_BYTES = 32 * 1024
"""Largest size of the events of a job that is passed to a job actor."""
_START_TIMEOUT_S = 120.0
_LONGEST_SILENCE_S = 60.0
"""Seconds without an answer after which a job actor is assumed to run no job."""
_HAS_DEVICE_TIMEOUT_S = 2.0
"""Time-out of `has_device` in seconds. A process that is still starting does not answer."""


class RayJobActor:
    """See `actors.scheduler.cluster.JobActor`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def ready(self) -> str:
        return str(await answer(self._handle.ready, timeout_s=_START_TIMEOUT_S))

    async def state(self) -> tuple[str | None, int]:
        job_id, jobs_run = await answer(self._handle.state)
        return job_id, jobs_run

    async def wait_idle(self) -> None:
        await answer(self._handle.wait_idle, timeout_s=None)

    async def run(self, entry: QueueEntry, job: Job, extra_data: SecretStr | None) -> RunOutcome:
        # The job actor reads a large job from the log, because Ray would use its object store.
        known = job if job.log_bytes <= _MOST_PASSED_BYTES else None
        try:
            run = self._handle.run.remote(
                entry.job_id,
                entry.ack_subject,
                known,
                after_attempts=job.attempts,
                given_at=utc_now(),
                extra_data=extra_data,
            )
            return RunOutcome(await run)
        except RayError as error:
            died = ActorDied if ended_by_itself(error) else ActorLost
            raise died(first_line(error)) from error

    async def retire(self) -> bool:
        return bool(await answer(self._handle.retire))

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        try:
            take = self._handle.take_delivery
            return bool(await answer(take, entry.job_id, entry.ack_subject, timeout_s=timeout_s))
        except ActorUnavailable:
            return False


class RayEngineActor:
    """See `actors.scheduler.cluster.EngineActor`. One of the one or two processes of an engine has
    the device.
    """

    def __init__(
        self,
        *handles: Any,
        add_standby: Callable[[Any], Awaitable[None]],
        end: Callable[[Any], Awaitable[None]],
        on_state: Callable[[EngineState], None] = lambda _: None,
        keep_object_info: Callable[[str, bytes], Awaitable[None]] = _keep_nothing,
    ) -> None:
        """`handles` are the processes of the engine.

        `add_standby` is called when the process with the device has answered for the first time.
        `end` kills this process, and the cluster restarts it. `on_state` is called with each state
        of the engine, and `keep_object_info` with each new answer of `/object_info`.
        """
        self._handles = handles
        self._add_standby = add_standby
        self._end = end
        self._on_state = on_state
        self._keep_object_info = keep_object_info
        self._kept_object_info: str | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._holder: Any = None

    async def check(self) -> EngineState:
        try:
            holder = self._holder or await self._find_holder()
            state: EngineState = await answer(holder.check)
            if self._holder is None:
                self._holder = holder
                await self._add_standby(holder)
        except ActorUnavailable as error:
            if isinstance(error.__cause__, ActorUnavailableError | EngineDied):
                raise EngineRestarts(str(error)) from error
            if isinstance(error.__cause__, RayActorError):
                raise EngineGone(str(error)) from error
            raise
        self._on_state(state)
        digest = None if state.server is None else state.server.object_info_digest
        if digest not in {None, self._kept_object_info} and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(holder, digest))
        return state

    async def _keep(self, holder: Any, digest: str) -> None:
        """Store the node types of the server. After an error the next check tries again."""
        try:
            await self._keep_object_info(digest, await answer(holder.object_info))
            self._kept_object_info = digest
        except (ActorUnavailable, DatabaseUnavailable) as error:
            fields = {"action": "keep_object_info", "error": str(error)}
            logger.warning("the node types of ComfyUI could not be stored", extra=fields)
        finally:
            self._keeping = None

    async def kill(self) -> None:
        if self._holder is not None:
            await self._end(self._holder)

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        try:
            holder = self._holder or await self._find_holder()
            had_begun: bool | None = await answer(holder.cancel, job_id, attempt)
            return had_begun
        except ActorUnavailable:
            return None

    async def _find_holder(self) -> Any:
        """Return the process that has the device. Raises ActorUnavailable."""
        asked = {asyncio.create_task(_holds(each)) for each in self._handles}
        errors: list[ActorUnavailable] = []
        try:
            for next_answer in asyncio.as_completed(asked):
                try:
                    if (holder := await next_answer) is not None:
                        return holder
                except ActorUnavailable as error:
                    errors.append(error)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise errors[0] if errors else ActorUnavailable("no engine has the device yet")


async def _holds(engine: Any) -> Any | None:
    """Return the process, or None if it does not have the device. Raises ActorUnavailable."""
    return engine if await answer(engine.has_device, timeout_s=_HAS_DEVICE_TIMEOUT_S) else None


class Silences:
    """Records the time since which each job actor has not answered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    async def may_run_job(self, name: str, actor: RayJobActor) -> bool:
        """Return whether the actor runs a job. A silent actor is assumed to run a job for
        `_LONGEST_SILENCE_S` seconds.
        """
        try:
            job_id, _ = await actor.state()
        except ActorUnavailable as error:
            since = self._since.setdefault(name, self._clock())
            is_slow = isinstance(error.__cause__, ActorUnavailableError | TimeoutError)
            if is_slow and self._clock() - since < _LONGEST_SILENCE_S:
                return True
            job_id = None
        self._since.pop(name, None)
        return job_id is not None


async def answer(
    method: Any, *arguments: object, timeout_s: float | None = _ANSWER_TIMEOUT_S
) -> Any:
    """Call a method of an actor and return its result. Raises ActorUnavailable."""
    try:
        async with asyncio.timeout(timeout_s):
            return await method.remote(*arguments)
    except (RayError, TimeoutError) as error:
        raise ActorUnavailable(first_line(error)) from error


_RAY_CALLS = constant("RAY_CALLS", 8)
"""Largest number of concurrent blocking calls of Ray."""


class RayCalls:
    """Runs blocking calls of Ray in threads of its own, so that they cannot occupy all threads of
    the event loop's default executor.
    """

    def __init__(self, *, at_once: int = _RAY_CALLS) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="ray")

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call and return its result. Raises ActorUnavailable after an error of Ray."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except Exception as error:
            if isinstance(error, RayError | ValueError) or is_machine_error(error):
                raise ActorUnavailable(str(error)) from error
            raise
