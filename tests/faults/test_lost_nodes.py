"""The dispatcher learns why a job actor died, on a real Ray of two nodes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.scheduler.cluster import ActorDied, ActorLost
from actors.scheduler.ray_cluster import RayJobActor
from events.bus.queues import QueueEntry
from tests.support.events import folded, submitted

pytestmark = pytest.mark.timeout(1200)


HERE = {"node_ip_address": "127.0.0.1"}


class Entry:
    job_id = "a-job"
    ack_subject = "a-subject"


@ray.remote(num_cpus=0, max_concurrency=10)
class Worker:
    """Runs its job for longer than any test."""

    def pid(self) -> int:
        return os.getpid()

    async def run(self, *_: object, **_named: object) -> str:
        await asyncio.sleep(600)
        return "completed"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    if not token.exists():
        token.write_text(token_hex(32))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1} | HERE)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Place:
    """A job that runs on its own node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._node = cluster.add_node(num_cpus=1, resources={"place": 1}, **HERE)
        self.group: PlacementGroup = placement_group([{"place": 1}])
        assert self.group.wait(60)
        at_place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=0)
        self._actor: Any = Worker.options(scheduling_strategy=at_place).remote()
        self.pid = ray.get(self._actor.pid.remote())

    async def run(self) -> None:
        job = folded([submitted()])
        await RayJobActor(self._actor).run(cast("QueueEntry", Entry()), job, None)

    def lose_node(self) -> None:
        self._cluster.remove_node(self._node, allow_graceful=False)


async def death(place: Place) -> type[ActorDied]:
    with pytest.raises(ActorDied) as caught:
        async with asyncio.timeout(60):
            await place.run()
    return caught.type


@pytest.mark.parametrize("how", ["process", "placement group", "node"])
async def test_only_a_process_that_ends_by_itself_has_died(cluster: Cluster, how: str) -> None:
    place = Place(cluster)
    heard = asyncio.create_task(death(place))
    await asyncio.sleep(0.5)
    match how:
        case "process":
            os.kill(place.pid, signal.SIGKILL)
        case "placement group":
            remove_placement_group(place.group)
        case _:
            place.lose_node()
    assert await heard is (ActorDied if how == "process" else ActorLost)
    remove_placement_group(place.group)
    if how != "node":
        place.lose_node()
