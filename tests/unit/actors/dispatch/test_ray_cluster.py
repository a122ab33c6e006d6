"""What Ray says, and what dispatching hears of it. Ray itself is replaced by hand-written parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray
from ray.exceptions import (
    RaySystemError,
    TaskPlacementGroupRemoved,
)

from actors.assembly import worker_config
from actors.dispatch import ray_cluster
from actors.dispatch.cluster import ActorUnavailable
from actors.dispatch.ray_calls import RayCalls
from actors.dispatch.ray_cluster import RayCluster
from events.store.records import Endpoint
from settings.settings import Settings
from tests.support.polling import eventually


class Group:
    """A placement group that has room once `room` is set."""

    def __init__(self, bundles: list[dict[str, float]], room: asyncio.Event) -> None:
        self.bundle_specs = bundles
        self.is_removed = False
        self._room = room

    async def ready(self) -> None:
        await self._room.wait()
        if self.is_removed:
            raise TaskPlacementGroupRemoved

    def wait(self, timeout_s: float) -> bool:
        """As Ray does, it keeps the thread that asks."""
        time.sleep(timeout_s)
        return self._room.is_set()


@dataclass
class Groups:
    """The placement groups that Ray knows, by name."""

    rooms: Mapping[str, asyncio.Event]
    nodes: Mapping[str, float] = field(default_factory=lambda: {"a": 8.0})
    """CPUs by node; one without any is dead."""
    made: dict[str, Group] = field(default_factory=dict)
    targets: list[str | None] = field(default_factory=list)
    """The node that was asked for each time."""
    labels: list[list[dict[str, str]] | None] = field(default_factory=list)
    """The labels that its nodes must have, each time."""

    def find(self, name: str) -> Group:
        if name not in self.made:
            raise ValueError(name)
        return self.made[name]

    def make(self, bundles: list[dict[str, float]], **options: Any) -> Group:
        name = options["name"]
        self.targets.append(options["_soft_target_node_id"])
        self.labels.append(options["bundle_label_selector"])
        self.made[name] = Group(bundles, self.rooms[name])
        return self.made[name]

    def remove(self, group: Group) -> None:
        self.made = {name: each for name, each in self.made.items() if each is not group}

    def told_nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": cpus > 0, "Resources": {"CPU": cpus or 8.0}}
            for name, cpus in self.nodes.items()
        ]

    def stand_in(self, monkeypatch: pytest.MonkeyPatch, *, gpus: float = 0) -> None:
        monkeypatch.setattr(ray_cluster.ray, "cluster_resources", lambda: {"GPU": gpus})
        monkeypatch.setattr(ray_cluster, "get_placement_group", self.find)
        monkeypatch.setattr(ray_cluster, "placement_group", self.make)
        monkeypatch.setattr(ray_cluster, "remove_placement_group", self.remove)
        monkeypatch.setattr(
            ray_cluster,
            "placement_group_table",
            lambda _: {"bundles_to_node_id": {0: self.targets[-1] or "a"}},
        )
        monkeypatch.setattr(ray_cluster.ray, "nodes", self.told_nodes)
        monkeypatch.setattr(ray_cluster.ray.util, "list_named_actors", lambda **_: [])


def cluster(**members: Any) -> RayCluster:
    settings = Settings.load(nats_url="nats://127.0.0.1:1")
    calls = RayCalls(at_once=2)
    return RayCluster(worker_config(settings, Endpoint("default", **members)), calls=calls)


@pytest.fixture(autouse=True)
def no_real_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many functions of Ray start a cluster if there is none, and it would outlive the test."""
    monkeypatch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
    yield
    assert not ray.is_initialized()


async def test_a_cluster_that_does_not_answer_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> Group:
        raise RaySystemError("away")

    monkeypatch.setattr(ray_cluster, "get_placement_group", away)
    with pytest.raises(ActorUnavailable):
        await cluster().place("worker:default:d1:0")


async def test_a_worker_is_placed_where_its_endpoint_says(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups({"w:0": asyncio.Event(), "w:1": asyncio.Event()})
    groups.stand_in(monkeypatch, gpus=8)
    for room in groups.rooms.values():
        room.set()
    members = {"gpus": 0.25, "cpus": 2.0, "resources": {"disk": 1.5}, "labels": {"zone": "!b"}}
    assert await cluster(**members).place("w:0") == 0.25
    assert groups.made["w:0"].bundle_specs == [{"CPU": 2.0, "GPU": 0.25, "disk": 1.5}]
    await cluster(gpus=0.0).place("w:1")
    assert groups.made["w:1"].bundle_specs == [{"CPU": 1.0}]
    assert groups.labels == [[{"zone": "!b"}], None]


async def test_a_worker_keeps_the_gpus_that_it_was_placed_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU node joins between the placing of two workers."""
    groups = Groups({"w:0": asyncio.Event(), "w:1": asyncio.Event()})
    groups.stand_in(monkeypatch)
    ours = cluster()
    first = asyncio.create_task(ours.place("w:0"))
    await eventually(lambda: "w:0" in groups.made)
    groups.stand_in(monkeypatch, gpus=1)
    groups.rooms["w:1"].set()
    assert await ours.place("w:1") == 1.0
    groups.rooms["w:0"].set()
    assert await first == 0.0
    assert await ours.place("w:0") == 0.0  # again, or by a successor


async def test_workers_that_wait_for_room_keep_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    room = asyncio.Event()
    groups = Groups({f"w:{number}": room for number in range(40)})
    groups.stand_in(monkeypatch)
    ours = cluster()
    placing = [asyncio.create_task(ours.place(name)) for name in groups.rooms]
    await eventually(lambda: len(groups.made) == 40)
    async with asyncio.timeout(5):
        assert await asyncio.to_thread(lambda: "any other hop") == "any other hop"
    room.set()
    assert await asyncio.gather(*placing) == [0.0] * 40


async def test_a_place_that_is_removed_while_it_waits_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = Groups({"w:0": asyncio.Event()})
    groups.stand_in(monkeypatch)
    placing = asyncio.create_task(cluster().place("w:0"))
    await eventually(lambda: "w:0" in groups.made)
    groups.made["w:0"].is_removed = True
    groups.rooms["w:0"].set()
    with pytest.raises(ActorUnavailable):
        await placing


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ({"a": 8.0}, None),
        ({"a": 8.0, "b": 8.0}, "b"),
        ({"a": 8.0, "small": 0.5, "b": 8.0}, "b"),
        ({"a": 8.0, "dead": 0.0}, None),
    ],
)
async def test_a_worker_that_did_not_come_up_is_rather_placed_on_another_node(
    monkeypatch: pytest.MonkeyPatch, nodes: dict[str, float], asked: str | None
) -> None:
    groups = Groups({"w:0": asyncio.Event()}, nodes)
    groups.rooms["w:0"].set()
    groups.stand_in(monkeypatch)
    ours = cluster()
    for has_failed in (True, False, False):
        await ours.place("w:0")
        await ours.remove("w:0", has_failed=has_failed)
    assert groups.targets == [None, asked, None]


async def test_workers_on_a_node_that_drains_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        group: {"name": group, "state": state, "bundles_to_node_id": nodes}
        for group, state, nodes in (
            ("worker:default:d:0", "CREATED", {0: "going"}),
            ("worker:default:d:1", "CREATED", {0: "staying"}),
            ("worker:default:d:2", "PENDING", {}),
            ("worker:default:d:3", "REMOVED", {0: "going"}),
            ("worker:other:d:0", "CREATED", {0: "going"}),
        )
    }
    draining: dict[str, int] = {}
    monkeypatch.setattr(ray_cluster, "placement_group_table", lambda: table)
    monkeypatch.setattr(ray_cluster.global_state, "get_draining_nodes", lambda: draining)
    assert await cluster().draining("worker:default:") == []
    draining["going"] = 0
    assert await cluster().draining("worker:default:") == ["worker:default:d:0"]
