"""Workers that do not come up: closed once nobody needs them, or given up and tried again."""

from __future__ import annotations

import asyncio

import pytest

from actors.dispatch.cluster import ActorUnavailable, EngineGone, EngineRestarts
from actors.dispatch.names import slot_name
from actors.dispatch.startup import Pauses, Startup
from events.types import Failed
from tests.support.dispatch import WORKER, Bench
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeCluster
from tests.support.workers.pool import Demand, idle_slot, kept, new_pool, workers


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def test_workers_that_wait_for_room_are_closed_once_no_job_needs_them(
    cluster: FakeCluster,
) -> None:
    cluster.room = 1
    demand = Demand(6)
    async with kept(new_pool(cluster, settings={"worker_unwanted_s": 0.05}), demand):
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))
        demand.jobs = 0
        await eventually(lambda: set(cluster.groups) == workers(0))
        demand.jobs = 6
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))


async def test_a_worker_that_starts_is_closed_once_no_job_needs_it(cluster: FakeCluster) -> None:
    (await cluster.engine(WORKER)).answers = False
    demand = Demand(1)
    pool = new_pool(cluster, min_workers=0, settings={"worker_unwanted_s": 0.05})
    async with kept(pool, demand):
        await eventually(lambda: set(cluster.groups) == workers(0))
        demand.jobs = 0
        await eventually(lambda: not cluster.groups)


async def test_what_waits_for_room_is_closed_before_what_starts(cluster: FakeCluster) -> None:
    cluster.room = 1
    (await cluster.engine(WORKER)).answers = False
    demand = Demand(6)
    async with kept(new_pool(cluster, settings={"worker_unwanted_s": 0.05}), demand):
        await eventually(lambda: list(cluster.groups.values()) == [True, False, False])
        demand.jobs = 2
        await eventually(lambda: set(cluster.groups) == workers(0))
        await asyncio.sleep(0.2)
        assert set(cluster.groups) == workers(0)
        assert cluster.failed == []


async def test_a_worker_whose_engine_dies_again_and_again_gives_its_place_back(
    cluster: FakeCluster,
) -> None:
    cluster.dead_engines = 1_000_000
    settings = {"worker_start_deaths": 3, "worker_retry_first_s": 1000}
    async with kept(new_pool(cluster, settings=settings), Demand(1)) as pool:
        await eventually(lambda: cluster.removed == [WORKER])
        assert cluster.groups == {}
        assert pool.trouble() == "No worker got ready: its process ended."
        assert cluster.failed == [WORKER]


async def test_a_worker_that_was_given_up_is_opened_again_after_a_growing_pause(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.dead_engines = 1_000_000
    settings = {"worker_start_deaths": 1, "worker_retry_first_s": 0.01}
    async with kept(new_pool(cluster, settings=settings), Demand(1)) as pool:
        await eventually(lambda: len(cluster.removed) >= 3)
        cluster.dead_engines = 0
        await eventually(lambda: idle_slot(pool, None))
        await eventually(lambda: pool.trouble() is None)
    given_up = [vars(line) for line in caplog.records if "does not get ready" in line.message]
    assert [line["pause_s"] for line in given_up[:3]] == [0.01, 0.02, 0.04]
    assert {line["error"] for line in given_up} == {"its process ended"}


async def test_a_worker_whose_engine_never_answers_gives_its_place_back(
    cluster: FakeCluster,
) -> None:
    (await cluster.engine(WORKER)).answers = False
    async with kept(new_pool(cluster, settings={"worker_start_s": 0.05}), Demand(1)):
        await eventually(lambda: cluster.removed == [WORKER])


async def test_a_worker_whose_job_actors_never_start_gives_its_place_back(
    cluster: FakeCluster,
) -> None:
    cluster.broken = {slot_name(WORKER, 0), slot_name(WORKER, 1)}
    settings = {"worker_start_s": 0.05, "worker_retry_first_s": 0.05}
    async with kept(new_pool(cluster, settings=settings), Demand(1)) as pool:
        await eventually(lambda: cluster.removed == [WORKER])
        assert pool.trouble() == "No worker got ready: none of its job actors has started."
        cluster.broken = set()
        await eventually(lambda: idle_slot(pool, None))
        await eventually(lambda: pool.trouble() is None)


async def test_a_cluster_that_is_away_for_a_while_ends_no_pool(cluster: FakeCluster) -> None:
    names, is_away = cluster.workers, True

    async def away(prefix: str) -> list[str]:
        if is_away:
            raise ActorUnavailable("away")
        return await names(prefix)

    cluster.workers = away  # type: ignore[method-assign]
    async with kept(new_pool(cluster), Demand(1)) as pool:
        await asyncio.sleep(0.05)
        is_away = False
        await eventually(lambda: idle_slot(pool, None))
        is_away = True
        await asyncio.sleep(0.05)


async def test_a_job_that_timed_out_without_a_worker_says_why() -> None:
    bench = Bench()
    bench.cluster.room = 0
    job_id = await bench.submit(deadline_s=0.2)

    async def end() -> object:
        return (await bench.job(job_id)).end

    async with bench.dispatching():
        failed = await eventually(end)
    assert isinstance(failed, Failed)
    assert failed.message.endswith("No worker got ready: the cluster has no room for one.")


def test_a_startup_fails_by_time_in_its_place(clock: Clock) -> None:
    startup = Startup(longest_s=10, most_deaths=2, clock=clock)
    clock.now += 1000
    assert not startup.has_failed
    startup.placed()
    clock.now += 6
    startup.silent(EngineRestarts("it is restarted"))
    startup.waits_for_room()  # its node is gone
    clock.now += 1000
    startup.placed()
    clock.now += 4
    assert not startup.has_failed
    clock.now += 1
    assert startup.has_failed
    startup.answered()
    assert not startup.has_failed


def test_a_startup_fails_by_deaths_and_not_by_restarts(clock: Clock) -> None:
    startup = Startup(longest_s=10, most_deaths=2, clock=clock)
    startup.placed()
    for _ in range(20):
        startup.silent(EngineRestarts("it is restarted"))
    for died in (True, False):
        assert not startup.has_failed
        startup.died(EngineGone("its process ended"))
        assert startup.has_failed != died
    startup.answered()
    startup.died(EngineGone("its process ended"))
    assert not startup.has_failed


def test_a_startup_says_what_it_waits_for(clock: Clock) -> None:
    startup = Startup(longest_s=10, most_deaths=2, clock=clock)
    assert startup.trouble == "the cluster has no room for one"
    startup.placed()
    assert startup.trouble == "its engine has not answered yet"
    startup.silent(EngineRestarts("it is restarted"))
    assert startup.trouble == "it is restarted"
    startup.answered()
    assert startup.trouble is None


IN_ITS_CONSTRUCTOR = """\
The actor died because of an error raised in its creation task, ray::Engine()
  File "engine.py", line 3
RuntimeError: no CUDA device
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (IN_ITS_CONSTRUCTOR, "RuntimeError: no CUDA device"),
        ("The actor died unexpectedly.\n\tclass_name: X\n", "The actor died unexpectedly."),
        ("", "EngineGone"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_what_ray_says_of_a_death_is_told_in_a_line(error: str, said: str) -> None:
    startup = Startup(longest_s=10, most_deaths=2)
    startup.placed()
    startup.died(EngineGone(error))
    assert startup.trouble == said


def test_pauses_double_up_to_the_longest_and_begin_again(clock: Clock) -> None:
    pauses = Pauses(first_s=10, longest_s=35, clock=clock)
    assert pauses.is_over(0)
    assert [pauses.begin(0) for _ in range(4)] == [10, 20, 35, 35]
    assert not pauses.is_over(0)
    assert pauses.is_over(1)
    clock.now += 35
    assert pauses.is_over(0)
    pauses.forget(0)
    assert pauses.begin(0) == 10
