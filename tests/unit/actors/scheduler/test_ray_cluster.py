"""Errors of Ray, and what the scheduler makes of them. Hand-written parts replace Ray."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    TaskPlacementGroupRemoved,
)

from actors.scheduler import ray_cluster
from actors.scheduler.cluster import ActorDied, ActorUnavailable, EngineGone, EngineRestarts
from actors.scheduler.ray_cluster import RayCalls, RayCluster, RayEngineActor, RayJobActor, Silences
from actors.worker.config import worker_config
from actors.worker.engine_process import EngineDied, EngineState
from engine.activity import ActivityKind
from events.store.records import Endpoint
from settings.settings import Settings
from tests.support.events import folded, submitted
from tests.support.memory.queues import MemoryJobQueue
from tests.support.patience import FACTOR
from tests.support.polling import eventually
from tests.support.ray_handles import EngineHandle


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

    rooms: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    """An event for each group, which is set while it has room."""
    gpus: float = 0
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

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_cluster.ray, "cluster_resources", lambda: {"GPU": self.gpus})
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


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups()
    groups.stand_in(monkeypatch)
    return groups


async def test_a_cluster_that_does_not_answer_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> Group:
        raise RaySystemError("away")

    monkeypatch.setattr(ray_cluster, "get_placement_group", away)
    with pytest.raises(ActorUnavailable):
        await cluster().place("worker:default:d1:0")


@pytest.mark.parametrize(
    ("said", "heard"),
    [("can't start new thread", ActorUnavailable), ("a defect", RuntimeError)],
)
async def test_an_error_of_the_machine_is_told_from_one_in_the_code(
    said: str, heard: type[Exception]
) -> None:
    def fail() -> None:
        raise RuntimeError(said)

    with pytest.raises(heard, match=said):
        await RayCalls().run(fail)


async def test_a_worker_is_placed_where_its_endpoint_says(groups: Groups) -> None:
    groups.gpus = 8
    for name in ("w:0", "w:1"):
        groups.rooms[name].set()
    members = {"gpus": 0.25, "cpus": 2.0, "resources": {"disk": 1.5}, "labels": {"zone": "!b"}}
    assert await cluster(**members).place("w:0") == 0.25
    assert groups.made["w:0"].bundle_specs == [{"CPU": 2.0, "GPU": 0.25, "disk": 1.5}]
    await cluster(gpus=0.0).place("w:1")
    assert groups.made["w:1"].bundle_specs == [{"CPU": 1.0}]
    assert groups.labels == [[{"zone": "!b"}], None]


async def test_a_worker_keeps_the_gpus_that_it_was_placed_with(groups: Groups) -> None:
    """A GPU node joins between the placing of two workers."""
    ours = cluster()
    first = asyncio.create_task(ours.place("w:0"))
    await eventually(lambda: "w:0" in groups.made)
    groups.gpus = 1
    groups.rooms["w:1"].set()
    assert await ours.place("w:1") == 1.0
    groups.rooms["w:0"].set()
    assert await first == 0.0
    assert await ours.place("w:0") == 0.0  # again, or by a successor


async def test_workers_that_wait_for_room_keep_no_thread(groups: Groups) -> None:
    ours = cluster()
    placing = [asyncio.create_task(ours.place(f"w:{number}")) for number in range(40)]
    await eventually(lambda: len(groups.made) == 40)
    async with asyncio.timeout(5 * FACTOR):
        assert await asyncio.to_thread(lambda: "any other hop") == "any other hop"
    for room in groups.rooms.values():
        room.set()
    assert await asyncio.gather(*placing) == [0.0] * 40


async def test_a_place_that_is_removed_while_it_waits_is_unavailable(groups: Groups) -> None:
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
    groups: Groups, nodes: dict[str, float], asked: str | None
) -> None:
    groups.nodes = nodes
    groups.rooms["w:0"].set()
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


IS_STANDBY = RayTaskError(
    "check", "", EngineDied("The process is the standby.")
).as_instanceof_cause()


class FailingHandle:
    """A handle of an actor, each of whose methods raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> FailingHandle:
        return self

    def remote(self, *_: object, **__: object) -> None:
        raise self._error


async def nothing(_holder: object) -> None:
    pass


def engine_of(*handles: Any, **options: Any) -> RayEngineActor:
    given: dict[str, Any] = {"add_standby": nothing, "end": nothing} | options
    return RayEngineActor(*handles, **given)


@pytest.mark.parametrize("method", ["ready", "state", "wait_idle"])
async def test_a_job_actor_that_cannot_be_asked_is_unavailable(method: str) -> None:
    actor = RayJobActor(FailingHandle(RaySystemError("away")))
    with pytest.raises(ActorUnavailable):
        await getattr(actor, method)()
    assert not await actor.take_delivery(MemoryJobQueue().entry("a-job", "1"), timeout_s=1)


@pytest.mark.parametrize("error", [RayError(), RaySystemError("away"), RayActorError()])
async def test_a_job_actor_that_died_says_so_whatever_ray_says(error: Exception) -> None:
    entry, job = MemoryJobQueue().entry("a-job", "1"), folded([submitted()])
    with pytest.raises(ActorDied, match=r"."):
        await RayJobActor(FailingHandle(error)).run(entry, job, None)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (RaySystemError("away"), ActorUnavailable),
        (RayActorError(), EngineGone),
        (ActorUnavailableError("it is restarted", b"a" * 16), EngineRestarts),
        (IS_STANDBY, EngineRestarts),
        (RayTaskError("check", "", RuntimeError("unforeseen")), ActorUnavailable),
    ],
)
async def test_an_engine_that_is_gone_is_told_from_one_that_does_not_answer(
    said: Exception, heard: type[Exception]
) -> None:
    with pytest.raises(heard) as raised:
        await engine_of(FailingHandle(said)).check()
    assert raised.type is heard


async def test_of_two_processes_the_one_with_the_device_is_the_engine() -> None:
    first, second = EngineHandle(has_device=True), EngineHandle()
    with_standby: list[object] = []

    async def add(holder: object) -> None:
        with_standby.append(holder)

    engine = engine_of(first, second, add_standby=add)
    for _ in range(2):
        assert (await engine.check()).jobs == 7
    assert (first.checks, second.checks, with_standby) == (2, 0, [first])


async def test_a_dead_engine_is_gone_and_found_again_in_the_other_process() -> None:
    first, second = EngineHandle(has_device=True), EngineHandle()
    await (engine := engine_of(first, second)).check()
    first.error, second.holds = RayActorError(), True
    with pytest.raises(EngineGone):
        await engine.check()
    await engine_of(first, second).check()
    assert second.checks == 1


async def test_an_engine_says_how_long_its_work_may_keep_it_from_answering() -> None:
    handle, reported = EngineHandle(has_device=True), list[EngineState]()
    engine = engine_of(handle, on_state=reported.append)
    assert (await engine.check()).works_s == 0.0
    handle.state = EngineState(ActivityKind.LOAD, 500.0, jobs=7)
    assert (await engine.check()).works_s == 500.0
    assert len(reported) == 2


async def test_it_is_the_process_with_the_device_that_is_ended() -> None:
    first, second = EngineHandle(), EngineHandle(has_device=True)
    ended: list[object] = []

    async def end(holder: object) -> None:
        ended.append(holder)

    engine = engine_of(first, second, end=end)
    await engine.kill()
    assert ended == [], "nobody knows which one it is"
    await engine.check()
    await engine.kill()
    assert ended == [second]


async def test_while_no_process_has_the_device_the_engine_is_unavailable() -> None:
    both = EngineHandle(), EngineHandle()
    with pytest.raises(ActorUnavailable, match="no engine has the device"):
        await engine_of(*both).check()


class Handle:
    """An actor whose `state` raises, or which has that job."""

    def __init__(self, said: Exception | str | None) -> None:
        self.said = said
        self.state = self

    async def remote(self) -> tuple[str | None, int]:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said, 1


@pytest.mark.parametrize(
    ("said", "may"),
    [
        (None, False),
        ("a-job", True),
        (TimeoutError(), True),
        (ActorUnavailableError("away", None), True),
        (ActorDiedError(), False),
    ],
    ids=["idle", "busy", "slow", "away", "dead"],
)
async def test_one_that_is_slow_to_answer_may_run_a_job(said: Any, may: bool) -> None:
    assert await Silences().may_run_job("slot", RayJobActor(Handle(said))) is may


async def test_one_that_stays_silent_runs_none_that_would_end() -> None:
    now = [0.0]
    silences, actor = Silences(lambda: now[0]), RayJobActor(Handle(TimeoutError()))
    answers = []
    for now[0] in (0.0, 59.0, 61.0):
        answers.append(await silences.may_run_job("slot", actor))
    assert answers == [True, True, False]
