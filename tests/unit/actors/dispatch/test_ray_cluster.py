"""What Ray says, and what dispatching hears of it. Ray itself is replaced by hand-written parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError, RayError, RaySystemError

from actors.assembly import worker_config
from actors.dispatch import ray_cluster
from actors.dispatch.cluster import ActorDied, ActorUnavailable, EngineGone
from actors.dispatch.ray_cluster import RayCluster, RayEngineActor, RayJobActor
from events.memory.queues import MemoryJobQueue
from events.store.records import Endpoint
from settings.settings import Settings
from tests.support.polling import eventually


class FailingMethod:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def remote(self, *_: object) -> None:
        raise self._error


class FailingHandle:
    """A handle of an actor, each of whose methods raises."""

    def __init__(self, error: Exception) -> None:
        self._method = FailingMethod(error)

    def __getattr__(self, name: str) -> FailingMethod:
        return self._method


class Group:
    """A placement group that has room once `room` is set."""

    def __init__(self, bundles: list[dict[str, float]], room: threading.Event) -> None:
        self.bundle_specs = bundles
        self._room = room

    def wait(self, timeout_s: float) -> bool:
        return self._room.wait(0.02)


def cluster() -> RayCluster:
    settings = Settings.load(nats_url="nats://127.0.0.1:1")
    return RayCluster(worker_config(settings, Endpoint("default")))


@pytest.fixture(autouse=True)
def no_real_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many functions of Ray start a cluster if there is none, and it would outlive the test."""
    monkeypatch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
    yield
    assert not ray.is_initialized()


@pytest.mark.parametrize("method", ["ready", "state", "wait_idle"])
async def test_a_job_actor_that_cannot_be_asked_is_unavailable(method: str) -> None:
    actor = RayJobActor(FailingHandle(RaySystemError("away")))
    with pytest.raises(ActorUnavailable):
        await getattr(actor, method)()


async def test_a_job_actor_that_cannot_be_asked_takes_no_delivery() -> None:
    actor = RayJobActor(FailingHandle(RaySystemError("away")))
    entry = MemoryJobQueue().entry("a-job", "1")
    assert not await actor.take_delivery(entry, timeout_s=1)


@pytest.mark.parametrize("error", [RayError(), RaySystemError("away"), RayActorError()])
async def test_a_job_actor_that_died_says_so_whatever_ray_says(error: Exception) -> None:
    with pytest.raises(ActorDied, match=r"."):
        await RayJobActor(FailingHandle(error)).run(MemoryJobQueue().entry("a-job", "1"))


@pytest.mark.parametrize(
    ("said", "heard"), [(RaySystemError("away"), ActorUnavailable), (RayActorError(), EngineGone)]
)
async def test_an_engine_that_is_gone_is_told_from_one_that_does_not_answer(
    said: Exception, heard: type[Exception]
) -> None:
    with pytest.raises(heard):
        await RayEngineActor(FailingHandle(said)).check()


async def test_a_cluster_that_does_not_answer_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> Group:
        raise RaySystemError("away")

    monkeypatch.setattr(ray_cluster, "get_placement_group", away)
    with pytest.raises(ActorUnavailable):
        await cluster().place("worker:default:d1:0")


async def test_a_worker_keeps_the_gpus_that_it_was_placed_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU node joins between the placing of two workers."""
    resources: dict[str, float] = {}
    rooms = {"w:0": threading.Event(), "w:1": threading.Event()}
    groups: dict[str, Group] = {}

    def find(name: str) -> Group:
        if name not in groups:
            raise ValueError(name)
        return groups[name]

    def make(bundles: list[dict[str, float]], **options: Any) -> Group:
        groups[options["name"]] = Group(bundles, rooms[options["name"]])
        return groups[options["name"]]

    monkeypatch.setattr(ray_cluster.ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(ray_cluster, "get_placement_group", find)
    monkeypatch.setattr(ray_cluster, "placement_group", make)
    ours = cluster()
    first = asyncio.create_task(ours.place("w:0"))
    await eventually(lambda: "w:0" in groups)
    resources["GPU"] = 1.0
    rooms["w:1"].set()
    assert await ours.place("w:1") == 1.0
    rooms["w:0"].set()
    assert await first == 0.0
    assert await ours.place("w:0") == 0.0  # again, or by a successor
