"""The real dispatcher with simulated workers: they must go on to be what it asks of workers."""

from __future__ import annotations

from benchmarks.harness.simulated_workers import SimulatedCluster
from events.types import Completed
from tests.support.dispatch import Bench
from tests.support.polling import eventually


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
