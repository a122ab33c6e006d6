"""The workers of an endpoint: how many, their replacement, and those that fail to start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.scheduler.cluster import ActorUnavailable, EngineGone, EngineRestarts
from actors.scheduler.names import slot_name
from actors.scheduler.pool import Pauses
from actors.scheduler.worker import Startup
from events.bus.queues import QueueEntry
from tests.support.clock import Clock
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually
from tests.support.scheduler.bench import PREFIX, WORKER
from tests.support.scheduler.cluster import FakeCluster
from tests.support.scheduler.pool import Demand, idle_slot, kept, new_pool, workers


async def settled(cluster: FakeCluster) -> None:
    """Wait until the pool has looked at its workers a few times more."""
    asked = cluster.asked
    await eventually(lambda: cluster.asked > asked + 20)


def entry(job_id: str) -> QueueEntry:
    return MemoryJobQueue().entry(job_id, "1")


@pytest.mark.parametrize(
    ("row", "jobs", "count"),
    [
        ({"min_workers": 2}, 0, 2),
        ({"min_workers": 2, "max_workers": 1}, 0, 2),
        ({}, 3, 2),
        ({}, 1000, 3),
    ],
    ids=["at least", "at least, whatever the most is", "as the jobs fill", "at most"],
)
async def test_so_many_workers_are_opened(
    cluster: FakeCluster, row: dict[str, int], jobs: int, count: int
) -> None:
    async with kept(new_pool(cluster, **row), Demand(jobs)) as pool:
        await eventually(lambda: pool.slot_index.count == 2 * count)
        await settled(cluster)
        assert set(cluster.groups) == workers(*range(count))
        assert cluster.removed == []


async def test_a_worker_is_filled_by_as_many_jobs_as_its_engine_takes(cluster: FakeCluster) -> None:
    demand = Demand()
    async with kept(new_pool(cluster, jobs_per_worker=0), demand) as pool:
        await eventually(lambda: pool.slot_index.count == 4)
        cluster.engines[f"{PREFIX}0"].jobs = 16
        await eventually(lambda: pool.slot_index.count == 16)
        demand.jobs = 17
        await eventually(lambda: set(cluster.groups) == workers(0, 1))


@pytest.mark.parametrize(
    ("room", "options", "closed"),
    [(100, {"idle_s": 0.05}, [2, 1]), (1, {"limits": {"unwanted_s": 0.05}}, [1, 2])],
    ids=["idle", "waits for room"],
)
async def test_a_worker_above_the_minimum_is_closed_once_no_job_needs_it(
    cluster: FakeCluster, room: int, options: dict[str, Any], closed: list[int]
) -> None:
    cluster.room = room
    demand = Demand(6)
    async with kept(new_pool(cluster, **options), demand):
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))
        demand.jobs = 0
        await eventually(lambda: set(cluster.groups) == workers(0))
        assert cluster.removed == [f"{PREFIX}{index}" for index in closed]
        demand.jobs = 6
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))


async def test_a_busy_worker_is_not_closed(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster, min_workers=0, idle_s=0.05), Demand(1)) as pool:
        _, slot = await eventually(lambda: idle_slot(pool, None))
        slot.reserve(entry("a-job"))
        await settled(cluster)
        assert cluster.removed == []
    assert set(cluster.groups) == workers(0), "a pool that is left keeps its workers"


async def test_a_worker_that_is_not_ready_is_not_closed_as_idle(cluster: FakeCluster) -> None:
    (await cluster.engine(f"{PREFIX}0")).answers = False
    async with kept(new_pool(cluster, min_workers=0, idle_s=0.05), Demand(1)) as pool:
        await eventually(lambda: f"{PREFIX}0" in cluster.groups)
        await settled(cluster)
        assert cluster.removed == []
        assert idle_slot(pool, None) is None


async def test_workers_of_another_making_close_once_they_run_nothing(cluster: FakeCluster) -> None:
    stale, of_another_endpoint = "worker:default:old:0", "worker:default-2:d1:0"
    await cluster.place(of_another_endpoint)
    await cluster.place(stale)
    actor = await cluster.job_actor(stale, slot_name(stale, 0))
    actor.begin("a-job")
    async with kept(new_pool(cluster), Demand()) as pool:
        worker, _ = await eventually(lambda: idle_slot(pool, None))
        assert {worker.name} == workers(0), "what it is given must be understood by its program"
        await settled(cluster)
        assert (cluster.removed, len(pool.describe())) == ([], 1)
        actor.finish()
        await eventually(lambda: cluster.removed == [stale])
        await settled(cluster)
    assert set(cluster.groups) == {of_another_endpoint, *workers(0)}


async def test_another_worker_replaces_one_whose_node_drains(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster, max_workers=1), Demand(1)) as pool:
        _, slot = await eventually(lambda: idle_slot(pool, None))
        slot.reserve(entry("a-job"))
        cluster.drained = workers(0)
        await eventually(lambda: set(cluster.groups) == workers(0, 1))
        worker, _ = await eventually(lambda: idle_slot(pool, None))
        assert worker.name == f"{PREFIX}1"
        assert cluster.removed == []  # the job runs on
        slot.release()
        await eventually(lambda: set(cluster.groups) == workers(1))


OLD = "worker:default:r-0:"
"""The prefix of the same release as `PREFIX`, but of another build."""


async def old_workers(cluster: FakeCluster, count: int, prefix: str = OLD) -> list[str]:
    """The workers of a predecessor, each ready and with a job actor."""
    names = [f"{prefix}{index}" for index in range(count)]
    for name in names:
        await cluster.place(name)
        await cluster.engine(name)
        await cluster.job_actor(name, slot_name(name, 0))
    return names


def made(cluster: FakeCluster, prefix: str = PREFIX) -> set[str]:
    return {name for name in cluster.groups if name.startswith(prefix)}


async def test_they_are_replaced_one_by_one_each_by_one_that_is_ready(cluster: FakeCluster) -> None:
    await old_workers(cluster, 3)
    seen: list[tuple[int, int]] = []
    async with kept(new_pool(cluster, min_workers=3), Demand()) as pool:
        await eventually(lambda: pool.slot_index.count)

        def is_over() -> bool:
            seen.append((len(cluster.groups), pool.slot_index.count))
            return not made(cluster, OLD)

        await eventually(is_over)
        assert len(made(cluster)) == 3
    assert max(groups for groups, _ in seen) == 4
    assert min(slots for _, slots in seen) > 0


async def test_one_that_runs_a_job_is_closed_at_its_end(cluster: FakeCluster) -> None:
    (old,) = await old_workers(cluster, 1)
    actor = cluster.actors[slot_name(old, 0)]
    actor.begin("a-job")
    async with kept(new_pool(cluster, min_workers=1), Demand(1)) as pool:
        new = await eventually(lambda: made(cluster))
        await eventually(lambda: pool.describe()[0]["state"] == "leaving")
        worker, slot = await eventually(lambda: idle_slot(pool, None))
        assert {worker.name} == new
        slot.reserve(entry("another-job"))
        await settled(cluster)
        assert cluster.removed == []
        actor.finish()
        await eventually(lambda: cluster.removed == [old])
        assert set(cluster.groups) == new


async def test_old_ones_take_jobs_while_new_ones_do_not_come_up(cluster: FakeCluster) -> None:
    (old,) = await old_workers(cluster, 1)
    cluster.dead_engines = 1000
    limits = {"start_deaths": 1, "retry_first_s": 0.01}
    async with kept(new_pool(cluster, min_workers=1, limits=limits), Demand(1)) as pool:
        await eventually(lambda: cluster.failed)
        found = await eventually(lambda: idle_slot(pool, None))
        assert found[0].name == old
        assert old not in cluster.removed


async def test_without_room_for_one_more_an_old_one_goes_first(cluster: FakeCluster) -> None:
    (old,) = await old_workers(cluster, 1)
    cluster.room = 1
    limits = {"replace_s": 0.1}
    async with kept(new_pool(cluster, min_workers=1, limits=limits), Demand()) as pool:
        await eventually(lambda: made(cluster))
        assert idle_slot(pool, None) is None or cluster.removed == []
        await eventually(lambda: cluster.removed == [old])
        await eventually(lambda: idle_slot(pool, None))
        assert set(cluster.groups) == made(cluster)


@pytest.mark.parametrize("prefix", [PREFIX, OLD])
async def test_more_than_there_may_be_by_now_take_no_jobs_however_many_wait(
    cluster: FakeCluster, prefix: str
) -> None:
    names = await old_workers(cluster, 3, prefix)
    actors = [cluster.actors[slot_name(name, 0)] for name in names]
    for actor in actors[:2]:
        actor.begin("a-job")
    async with kept(new_pool(cluster, min_workers=0, max_workers=1), Demand(100)) as pool:
        await eventually(lambda: cluster.removed == [names[2]])
        await settled(cluster)
        assert cluster.removed == [names[2]]
        for actor in actors[:2]:
            actor.finish()
        await eventually(lambda: len(cluster.groups) == 1 and made(cluster))
        await eventually(lambda: pool.slot_index.count)


async def test_a_worker_whose_actors_are_not_asked_yet_may_run_a_job(cluster: FakeCluster) -> None:
    names = await old_workers(cluster, 3)
    for name in names:
        cluster.actors[slot_name(name, 0)].begin("a-job")
        cluster.engines[name].answers = False
    limits = {"replace_s": 0.05}
    async with kept(new_pool(cluster, min_workers=0, limits=limits), Demand(3)) as pool:
        await eventually(lambda: any(each["state"] == "leaving" for each in pool.describe()))
        await settled(cluster)
        assert cluster.removed == []
        for name in names:
            cluster.actors[slot_name(name, 0)].finish()
        await eventually(lambda: cluster.removed)


async def test_nothing_is_opened_for_workers_that_nobody_needs(cluster: FakeCluster) -> None:
    await old_workers(cluster, 2)
    async with kept(new_pool(cluster, min_workers=0), Demand()):
        await eventually(lambda: not cluster.groups)
    assert sorted(cluster.removed) == [f"{OLD}0", f"{OLD}1"]


async def test_a_pool_that_is_drained_keeps_no_worker_without_a_job(cluster: FakeCluster) -> None:
    demand = Demand(1)
    async with kept(new_pool(cluster, min_workers=2), Demand()):
        await eventually(lambda: len(made(cluster)) == 2)
    drained = new_pool(cluster, min_workers=2, draining=True)
    async with kept(drained, demand):
        await eventually(lambda: idle_slot(drained, None))
        await settled(cluster)
        assert cluster.removed == []
        demand.jobs = 0
        await eventually(lambda: not cluster.groups)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("options", "is_ready"),
    [
        ({"idle_timeout_s": 0.0}, True),
        ({"idle_timeout_s": 0.05}, True),
        ({"limits": {"unwanted_s": 0.05}}, False),
    ],
    ids=["not to idle", "to idle for a while", "still starts"],
)
async def test_the_last_worker_is_closed_once_no_job_needs_it_and_not_before_its_job_has_come(
    cluster: FakeCluster, options: dict[str, Any], *, is_ready: bool
) -> None:
    (await cluster.engine(WORKER)).answers = is_ready
    demand = Demand(1)
    pool = new_pool(cluster, min_workers=0, **options)
    async with kept(pool, demand):
        await eventually(lambda: pool.slot_index.count if is_ready else cluster.groups)
        await settled(cluster)
        assert cluster.removed == []
        demand.jobs = 0
        await eventually(lambda: not cluster.groups)


async def test_what_waits_for_room_is_closed_before_what_starts(cluster: FakeCluster) -> None:
    cluster.room = 1
    (await cluster.engine(WORKER)).answers = False
    demand = Demand(6)
    async with kept(new_pool(cluster, limits={"unwanted_s": 0.05}), demand):
        await eventually(lambda: list(cluster.groups.values()) == [True, False, False])
        demand.jobs = 2
        await eventually(lambda: set(cluster.groups) == workers(0))
        await settled(cluster)
        assert set(cluster.groups) == workers(0)
        assert cluster.failed == []


async def engine_dies(cluster: FakeCluster) -> None:
    cluster.dead_engines = 1_000_000


async def engine_is_silent(cluster: FakeCluster) -> None:
    (await cluster.engine(WORKER)).answers = False


async def actors_do_not_start(cluster: FakeCluster) -> None:
    cluster.broken = {slot_name(WORKER, 0), slot_name(WORKER, 1)}


@pytest.mark.parametrize(
    ("breaks", "limits", "trouble"),
    [
        (engine_dies, {"start_deaths": 3}, "its process ended"),
        (engine_is_silent, {"start_s": 0.05}, None),
        (actors_do_not_start, {"start_s": 0.05}, "none of its job actors has started"),
    ],
)
async def test_a_worker_that_does_not_come_up_gives_its_place_back(
    cluster: FakeCluster,
    breaks: Callable[[FakeCluster], Awaitable[None]],
    limits: dict[str, float],
    trouble: str | None,
) -> None:
    await breaks(cluster)
    async with kept(new_pool(cluster, limits=limits | {"retry_first_s": 1000}), Demand(1)) as pool:
        await eventually(lambda: cluster.removed == [WORKER])
        assert (cluster.groups, cluster.failed) == ({}, [WORKER])
        assert trouble is None or pool.trouble() == f"No worker is ready: {trouble}."


async def test_a_worker_that_was_given_up_is_opened_again_after_a_growing_pause(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.dead_engines = 1_000_000
    limits = {"start_deaths": 1, "retry_first_s": 0.01}
    async with kept(new_pool(cluster, limits=limits), Demand(1)) as pool:
        await eventually(lambda: len(cluster.removed) >= 3)
        cluster.dead_engines = 0
        await eventually(lambda: idle_slot(pool, None))
        await eventually(lambda: pool.trouble() is None)
    given_up = [vars(line) for line in caplog.records if "did not start" in line.message]
    assert [line["pause_s"] for line in given_up[:3]] == [0.01, 0.02, 0.04]
    assert {line["error"] for line in given_up} == {"its process ended"}


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


def test_a_startup_fails_by_time_in_its_place(clock: Clock) -> None:
    startup = Startup(longest_s=10, most_deaths=2, clock=clock)
    assert startup.trouble == "the cluster has no room for a worker"
    clock.now += 1000
    assert not startup.has_failed
    startup.placed()
    assert startup.trouble == "its engine has not answered yet"
    clock.now += 6
    startup.silent(EngineRestarts("it is restarted"))
    startup.note_unplaced()  # its node is gone
    clock.now += 1000
    startup.placed()
    clock.now += 4
    assert not startup.has_failed
    clock.now += 1
    assert startup.has_failed
    startup.answered()
    assert not startup.has_failed
    assert startup.trouble is None


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
        ("x" * 5000, "x" * 1200),
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
