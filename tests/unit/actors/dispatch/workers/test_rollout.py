"""How workers are replaced once their endpoint has them made anew."""

from __future__ import annotations

import asyncio

import pytest

from actors.dispatch.names import slot_name
from actors.dispatch.pool import WorkerPool
from events.memory.queues import MemoryJobQueue
from tests.support.dispatch import PREFIX
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeCluster
from tests.support.workers.pool import Demand, idle_slot, kept, new_pool

OLD = "worker:default:r-0:"
"""Of the same release as `PREFIX`, and another make."""
OTHER_RELEASE = "worker:default:q-1:"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


async def old_workers(cluster: FakeCluster, count: int, prefix: str = OLD) -> list[str]:
    """Those of a predecessor, each ready and with a job actor."""
    names = [f"{prefix}{index}" for index in range(count)]
    for name in names:
        await cluster.place(name)
        await cluster.engine(name)
        await cluster.job_actor(name, slot_name(name, 0))
    return names


def made(cluster: FakeCluster, prefix: str = PREFIX) -> set[str]:
    return {name for name in cluster.groups if name.startswith(prefix)}


async def test_they_are_replaced_one_by_one_each_by_one_that_is_ready(
    cluster: FakeCluster,
) -> None:
    await old_workers(cluster, 3)
    seen: list[tuple[int, int]] = []
    async with kept(new_pool(cluster, min_workers=3), Demand()) as pool:
        await eventually(lambda: pool.free.count)

        def is_over() -> bool:
            seen.append((len(cluster.groups), pool.free.count))
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
        await eventually(lambda: pool.told()[0]["state"] == "leaving")
        worker, slot = await eventually(lambda: idle_slot(pool, None))
        assert {worker.name} == new
        slot.reserve(MemoryJobQueue().entry("another-job", "1"))
        await asyncio.sleep(0.1)
        assert cluster.removed == []
        actor.finish()
        await eventually(lambda: cluster.removed == [old])
        assert set(cluster.groups) == new


async def test_old_ones_take_jobs_while_what_is_made_now_does_not_come_up(
    cluster: FakeCluster,
) -> None:
    (old,) = await old_workers(cluster, 1)
    cluster.dead_engines = 1000
    settings = {"worker_start_deaths": 1, "worker_retry_first_s": 0.01}
    async with kept(new_pool(cluster, min_workers=1, settings=settings), Demand(1)) as pool:
        await eventually(lambda: cluster.failed)
        found = await eventually(lambda: idle_slot(pool, None))
        assert found[0].name == old
        assert old not in cluster.removed


async def test_where_there_is_no_room_for_one_more_an_old_one_goes_first(
    cluster: FakeCluster,
) -> None:
    (old,) = await old_workers(cluster, 1)
    cluster.room = 1
    settings = {"worker_replace_s": 0.1}
    async with kept(new_pool(cluster, min_workers=1, settings=settings), Demand()) as pool:
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
        await asyncio.sleep(0.1)
        assert cluster.removed == [names[2]]
        for actor in actors[:2]:
            actor.finish()
        await eventually(lambda: len(cluster.groups) == 1 and made(cluster))
        await eventually(lambda: pool.free.count)


async def test_as_many_as_there_always_are_stay_whatever_the_most_is(cluster: FakeCluster) -> None:
    """The settings of the default endpoint may say so."""
    async with kept(new_pool(cluster, min_workers=2, max_workers=1), Demand()) as pool:
        await eventually(lambda: pool.free.count == 4)
        await asyncio.sleep(0.1)
        assert (len(cluster.groups), cluster.removed) == (2, [])


async def test_a_worker_whose_actors_are_not_asked_yet_may_run_a_job(cluster: FakeCluster) -> None:
    names = await old_workers(cluster, 3)
    for name in names:
        cluster.actors[slot_name(name, 0)].begin("a-job")
        cluster.engines[name].answers = False
    settings = {"worker_replace_s": 0.05}
    async with kept(new_pool(cluster, min_workers=0, settings=settings), Demand(3)) as pool:
        await eventually(lambda: any(each["state"] == "leaving" for each in pool.told()))
        await asyncio.sleep(0.1)
        assert cluster.removed == []
        for name in names:
            cluster.actors[slot_name(name, 0)].finish()
        await eventually(lambda: cluster.removed)


async def test_nothing_is_opened_for_workers_that_nobody_needs(cluster: FakeCluster) -> None:
    await old_workers(cluster, 2)
    async with kept(new_pool(cluster, min_workers=0), Demand()):
        await eventually(lambda: not cluster.groups)
    assert sorted(cluster.removed) == [f"{OLD}0", f"{OLD}1"]


async def test_one_of_another_release_gets_no_job(cluster: FakeCluster) -> None:
    """What it is given must be understood by its program."""
    (other,) = await old_workers(cluster, 1, OTHER_RELEASE)
    cluster.actors[slot_name(other, 0)].begin("a-job")
    async with kept(new_pool(cluster, min_workers=1), Demand()) as pool:
        worker, _ = await eventually(lambda: idle_slot(pool, None))
        assert worker.name.startswith(PREFIX)
        assert len(pool.told()) == 1


async def test_a_pool_that_is_drained_keeps_no_worker_without_a_job(cluster: FakeCluster) -> None:
    demand = Demand(1)
    async with kept(new_pool(cluster, min_workers=2), Demand()):
        await eventually(lambda: len(made(cluster)) == 2)
    drained: WorkerPool = new_pool(cluster, min_workers=2, draining=True)
    async with kept(drained, demand):
        await eventually(lambda: idle_slot(drained, None))
        await asyncio.sleep(0.1)
        assert cluster.removed == []
        demand.jobs = 0
        await eventually(lambda: not cluster.groups)


async def test_a_worker_that_may_not_idle_at_all_stays_for_the_job_it_was_opened_for(
    cluster: FakeCluster,
) -> None:
    demand = Demand(1)
    async with kept(new_pool(cluster, min_workers=0, idle_timeout_s=0.0), demand) as pool:
        await eventually(lambda: pool.free.count)
        await asyncio.sleep(0.1)
        assert cluster.removed == []
        demand.jobs = 0
        await eventually(lambda: not cluster.groups)


async def test_an_endpoint_says_itself_how_long_a_worker_may_idle(cluster: FakeCluster) -> None:
    demand = Demand(1)
    async with kept(new_pool(cluster, min_workers=0, idle_timeout_s=0.05), demand) as pool:
        await eventually(lambda: idle_slot(pool, None))
        demand.jobs = 0
        await eventually(lambda: not cluster.groups)
