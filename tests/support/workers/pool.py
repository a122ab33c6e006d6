"""A pool of workers on a cluster in memory, and the jobs that it is kept for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.dispatch.free_slots import Place
from actors.dispatch.pool import WorkerPool
from actors.dispatch.slots import SlotNumbers
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings
from tests.support.dispatch import PREFIX
from tests.support.workers.cluster import FakeCluster

LONG_S = 1000.0


def new_pool(
    cluster: FakeCluster,
    *,
    idle_s: float = LONG_S,
    settings: dict[str, Any] | None = None,
    **row: Any,
) -> WorkerPool:
    row = {"min_workers": 1, "max_workers": 3, "jobs_per_worker": 2, "cpus": 1.0} | row
    return WorkerPool(
        Endpoint("default", **row),
        prefix=PREFIX,
        cluster=cluster,
        settings=DispatchSettings(
            endpoints_period_s=0.01, worker_idle_s=idle_s, **(settings or {})
        ),
        engine_silence_s=LONG_S,
        slots=SlotNumbers(most=row["jobs_per_worker"]),
        worker_period_s=0.01,
    )


class Demand:
    """How many jobs wait or run."""

    def __init__(self, jobs: int = 0) -> None:
        self.jobs = jobs

    async def __call__(self) -> int:
        return self.jobs


@asynccontextmanager
async def kept(pool: WorkerPool, demand: Demand) -> AsyncIterator[WorkerPool]:
    task = asyncio.create_task(pool.keep(demand))
    try:
        yield pool
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


def workers(*indexes: int) -> set[str]:
    return {f"{PREFIX}{index}" for index in indexes}


def idle_slot(pool: WorkerPool, checkpoint: str | None) -> Place | None:
    """A free slot, on a worker that has the checkpoint if there is one."""
    number = None if checkpoint is None else pool.free.warm(checkpoint)
    number = pool.free.any() if number is None else number
    return None if number is None else pool.free.take(number, checkpoint)
