"""The real dispatcher with simulated workers: they must go on to be what it asks of workers."""

from __future__ import annotations

from benchmarks.harness.simulated_workers import SimulatedCluster
from events.types import Completed
from tests.support.dispatch import Bench
from tests.support.polling import eventually
from tests.support.workers.pool import Demand, kept, new_pool


class SimulatedBench(Bench):
    def __init__(self, *, has_room: bool = True) -> None:
        super().__init__()
        self.cluster = SimulatedCluster(
            self.writer, job_s=0.0, jobs_per_worker=2, has_room=has_room
        )

    async def is_queue_empty(self) -> bool:
        return not await self.queue.job_ids()


async def test_simulated_workers_bring_jobs_to_their_ends() -> None:
    bench = SimulatedBench()
    async with bench.dispatching(slots=2):
        jobs = [await bench.submit(lane=lane) for lane in range(5)]
        await eventually(bench.is_queue_empty)
        ends = [(await bench.job(job_id)).end for job_id in jobs]
    assert ends == [Completed(images=0)] * len(jobs)


async def test_without_room_jobs_wait() -> None:
    bench = SimulatedBench(has_room=False)
    async with bench.dispatching(slots=2):
        job_id = await bench.submit()
        await eventually(lambda: bench.cluster.workers("worker:"))
        assert await bench.is_queued(job_id)


async def test_those_that_nobody_needs_are_closed() -> None:
    cluster, demand = SimulatedBench().cluster, Demand(1)

    async def is_empty() -> bool:
        return not await cluster.workers("worker:")

    async with kept(new_pool(cluster, min_workers=0, idle_s=0.01), demand) as pool:
        await eventually(lambda: pool.free.count == 2)
        demand.jobs = 0
        await eventually(lambda: pool.free.count == 0)
        await eventually(is_empty)
