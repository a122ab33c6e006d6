from __future__ import annotations

import asyncio

import pytest

from actors.dispatch.names import slot_name
from events.memory.queues import MemoryJobQueue
from events.queue import QueueEntry
from tests.support.dispatch import PREFIX
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeCluster
from tests.support.workers.pool import Demand, idle_slot, kept, new_pool, workers


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def entry(job_id: str) -> QueueEntry:
    return MemoryJobQueue().entry(job_id, "1")


async def test_the_least_number_of_workers_is_there_without_any_job(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster, min_workers=2), Demand()):
        await eventually(lambda: set(cluster.groups) == workers(0, 1))


async def test_as_many_are_opened_as_the_jobs_would_fill(cluster: FakeCluster) -> None:
    demand = Demand(3)
    async with kept(new_pool(cluster), demand):
        await eventually(lambda: set(cluster.groups) == workers(0, 1))
        demand.jobs = 1000
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))


async def test_a_worker_is_filled_by_as_many_jobs_as_its_engine_takes(
    cluster: FakeCluster,
) -> None:
    demand = Demand()
    async with kept(new_pool(cluster, jobs_per_worker=0), demand) as pool:
        await eventually(lambda: pool.free.count == 4)
        cluster.engines[f"{PREFIX}0"].jobs = 16
        await eventually(lambda: pool.free.count == 16)
        demand.jobs = 17
        await eventually(lambda: set(cluster.groups) == workers(0, 1))


async def test_an_idle_worker_above_the_minimum_is_closed(cluster: FakeCluster) -> None:
    demand = Demand(6)
    async with kept(new_pool(cluster, idle_s=0.05), demand):
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))
        demand.jobs = 0
        await eventually(lambda: set(cluster.groups) == workers(0))
        assert cluster.removed == [f"{PREFIX}2", f"{PREFIX}1"]
        demand.jobs = 6
        await eventually(lambda: set(cluster.groups) == workers(0, 1, 2))


async def test_a_busy_worker_is_not_closed(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster, min_workers=0, idle_s=0.05), Demand(1)) as pool:
        _, slot = await eventually(lambda: idle_slot(pool, None))
        slot.reserve(entry("a-job"))
        await asyncio.sleep(0.2)
        assert cluster.removed == []


async def test_a_worker_that_is_not_ready_is_not_closed_as_idle(cluster: FakeCluster) -> None:
    (await cluster.engine(f"{PREFIX}0")).answers = False
    async with kept(new_pool(cluster, min_workers=0, idle_s=0.05), Demand(1)) as pool:
        await eventually(lambda: f"{PREFIX}0" in cluster.groups)
        await asyncio.sleep(0.2)
        assert cluster.removed == []
        assert idle_slot(pool, None) is None


async def test_a_free_slot_is_taken_on_a_worker_that_has_the_checkpoint(
    cluster: FakeCluster,
) -> None:
    async with kept(new_pool(cluster, min_workers=2), Demand()) as pool:
        await eventually(lambda: len(cluster.actors) == 4)
        first, slot = await eventually(lambda: idle_slot(pool, "a"))
        slot.reserve(entry("job-1"))
        again, slot = await eventually(lambda: idle_slot(pool, "a"))
        assert again is first
        slot.reserve(entry("job-2"))
        other, _ = await eventually(lambda: idle_slot(pool, "a"))
        assert other is not first
        assert other.checkpoints == {"a"}


async def test_a_checkpoint_counts_for_more_than_the_order_of_the_workers(
    cluster: FakeCluster,
) -> None:
    async with kept(new_pool(cluster, min_workers=2, jobs_per_worker=1), Demand()) as pool:
        found = {}
        for job_id in ("job-1", "job-2"):
            worker, slot = await eventually(lambda: idle_slot(pool, None))
            slot.reserve(entry(job_id))
            found[worker.name] = worker, slot
        for index, checkpoint in enumerate(("b", "a")):
            worker, slot = found[f"{PREFIX}{index}"]
            slot.release()
            assert idle_slot(pool, checkpoint) == (worker, slot)
            slot.reserve(entry(checkpoint))
        for _, slot in found.values():
            slot.release()
        assert idle_slot(pool, "a") == found[f"{PREFIX}1"]


async def test_a_successor_takes_over_workers_and_the_jobs_on_them(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster, min_workers=2), Demand()):
        await eventually(lambda: len(cluster.actors) == 4)
    cluster.actors[slot_name(f"{PREFIX}1", 0)].begin("a-job")

    async with kept(new_pool(cluster, min_workers=0), Demand()) as successor:
        worker, slot = await eventually(lambda: successor.free.running("a-job"))
        assert (worker.name, slot.name) == (f"{PREFIX}1", slot_name(f"{PREFIX}1", 0))
        assert successor.free.running("another-job") is None
        assert (cluster.killed, cluster.removed) == ([], [])


async def test_workers_of_another_making_are_closed_once_they_run_nothing(
    cluster: FakeCluster,
) -> None:
    stale = "worker:default:old:0"
    await cluster.place(stale)
    actor = await cluster.job_actor(stale, slot_name(stale, 0))
    actor.begin("a-job")
    async with kept(new_pool(cluster), Demand()):
        await eventually(lambda: set(cluster.groups) == {stale, *workers(0)})
        await asyncio.sleep(0.1)
        assert cluster.removed == []
        actor.finish()
        await eventually(lambda: cluster.removed == [stale])


async def test_workers_of_other_endpoints_are_let_alone(cluster: FakeCluster) -> None:
    await cluster.place("worker:default-2:d1:0")
    async with kept(new_pool(cluster), Demand()) as pool:
        await eventually(lambda: idle_slot(pool, None))
        assert "worker:default-2:d1:0" in cluster.groups


async def test_another_worker_takes_the_place_of_one_whose_node_drains(
    cluster: FakeCluster,
) -> None:
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


async def test_a_pool_that_is_left_keeps_its_workers(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster), Demand()) as pool:
        await eventually(lambda: idle_slot(pool, None))
    assert set(cluster.groups) == workers(0)


async def test_who_waits_for_a_change_hears_of_a_free_slot(cluster: FakeCluster) -> None:
    async with kept(new_pool(cluster), Demand()) as pool:
        while idle_slot(pool, None) is None:
            await asyncio.wait_for(pool.changed(), 5)
