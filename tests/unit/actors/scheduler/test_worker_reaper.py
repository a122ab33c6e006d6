"""Workers are removed once no dispatcher is left, and how a dispatcher keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors.scheduler import worker_reaper
from actors.scheduler.cluster import ActorUnavailable
from actors.scheduler.ray_cluster import RayCalls
from actors.scheduler.worker_reaper import NAME, WorkerReaper, keep_workers
from actors.worker.engine_process import NAMESPACE
from tests.support.polling import eventually
from tests.support.scheduler.cluster import FakeCluster

KEPT_S = 60.0
WORKER, PENDING = "worker:default:d1-m1:0", "worker:far:d1-m1:0"
SLOT = f"{WORKER}:job:0"


class SlowCluster(FakeCluster):
    """A test says what its next answer is like."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(groups={WORKER: True, PENDING: False})
        self.bench = bench
        self.answers_after_s = 0.0
        self.is_away = False
        self.on_asked: Callable[[], None] = lambda: None

    async def is_idle(self, worker: str) -> bool:
        found = await super().is_idle(worker)
        self.on_asked()
        return found

    async def workers(self, prefix: str) -> list[str]:
        self.bench.now_s += self.answers_after_s
        if self.is_away:
            raise ActorUnavailable("no answer in time")
        return await super().workers(prefix)


class Bench:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.cluster = SlowCluster(self)
        self.reaper = WorkerReaper(self.cluster, kept_s=KEPT_S, clock=lambda: self.now_s)

    async def after(self, seconds: float) -> bool:
        self.now_s += seconds
        return await self.reaper.sweep()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_workers_are_given_back_once_no_dispatcher_came_for_the_time(bench: Bench) -> None:
    for _ in range(5):
        assert not await bench.after(KEPT_S - 1)
        bench.reaper.keep()
    assert not await bench.after(KEPT_S - 1)
    assert bench.cluster.removed == []
    assert await bench.after(2)
    assert bench.cluster.removed == [WORKER, PENDING]


async def test_one_that_runs_a_job_goes_after_its_end(bench: Bench) -> None:
    actor = await bench.cluster.job_actor(WORKER, SLOT)
    actor.begin("a-job")
    assert not await bench.after(KEPT_S + 1)
    assert bench.cluster.removed == [PENDING]
    actor.finish()
    assert await bench.after(1)
    assert bench.cluster.removed == [PENDING, WORKER]


async def test_a_dispatcher_that_comes_while_a_worker_is_asked_keeps_it(bench: Bench) -> None:
    bench.cluster.on_asked = bench.reaper.keep
    assert not await bench.after(KEPT_S + 1)
    assert bench.cluster.removed == []


async def test_a_dispatcher_has_time_to_come_after_an_outage_of_the_cluster(bench: Bench) -> None:
    bench.cluster.is_away = True
    assert not await bench.after(10 * KEPT_S)
    bench.cluster.is_away = False
    bench.cluster.answers_after_s = KEPT_S
    assert not await bench.after(KEPT_S + 1)
    assert bench.cluster.removed == []
    bench.cluster.answers_after_s = 0.0
    assert await bench.after(KEPT_S + 1)


class Reaper:
    """One of another version, as a handle of Ray."""

    def __init__(self) -> None:
        self.keep = self

    async def remote(self, *_made_for: object) -> bool:
        return False


async def test_one_of_an_application_before_ends_where_workers_stay_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [{"namespace": "other", "name": NAME}, {"namespace": NAMESPACE, "name": NAME}]
    killed: list[Any] = []
    monkeypatch.setattr("ray.util.list_named_actors", lambda **_: there)
    monkeypatch.setattr("ray.get_actor", lambda *name: name)
    monkeypatch.setattr("ray.kill", killed.append)
    said = asyncio.Event()
    await keep_workers(None, RayCalls(at_once=1), kept_s=0, on_reached=said.set)  # type: ignore[arg-type]
    assert killed == [(NAME, NAMESPACE)]
    assert said.is_set()


async def test_one_that_is_always_of_another_version_is_made_anew_at_a_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(worker_reaper, "_find_or_make", lambda *_: Reaper())
    monkeypatch.setattr("ray.kill", killed.append)
    keeping = asyncio.create_task(
        keep_workers(None, RayCalls(at_once=1), kept_s=60.0)  # type: ignore[arg-type]
    )
    await eventually(lambda: bool(killed))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(killed) == 1
    keeping.cancel()
