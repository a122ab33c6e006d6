"""A pool of workers on a cluster in memory, and its demand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.scheduler.pool import PoolLimits, WorkerPool
from actors.scheduler.slot_index import WorkerSlot
from actors.scheduler.slots import SlotNumbers
from events.store.records import Endpoint
from tests.support.polling import running
from tests.support.scheduler.bench import PREFIX
from tests.support.scheduler.cluster import FakeCluster

LONG_S = 1000.0


def new_pool(
    cluster: FakeCluster,
    *,
    idle_s: float = LONG_S,
    limits: dict[str, Any] | None = None,
    **row: Any,
) -> WorkerPool:
    row = {"min_workers": 1, "max_workers": 3, "jobs_per_worker": 2, "cpus": 1.0} | row
    return WorkerPool(
        Endpoint("default", **row),
        prefix=PREFIX,
        cluster=cluster,
        idle_s=idle_s,
        limits=PoolLimits(period_s=0.01, **(limits or {})),
        engine_silence_s=LONG_S,
        slots=SlotNumbers(most=row["jobs_per_worker"]),
        worker_period_s=0.01,
    )


class Demand:
    """The number of waiting and running jobs."""

    def __init__(self, jobs: int = 0) -> None:
        self.jobs = jobs

    async def __call__(self) -> int:
        return self.jobs


@asynccontextmanager
async def kept(pool: WorkerPool, demand: Demand) -> AsyncIterator[WorkerPool]:
    async with running(pool.keep(demand)):
        yield pool


def workers(*indexes: int) -> set[str]:
    return {f"{PREFIX}{index}" for index in indexes}


def idle_slot(pool: WorkerPool, checkpoint: str | None) -> WorkerSlot | None:
    """A free slot, on a worker that has the checkpoint if there is one."""
    number = None if checkpoint is None else pool.slot_index.idle_holder_of(checkpoint)
    number = pool.slot_index.lowest_idle() if number is None else number
    return None if number is None else pool.slot_index.pick_slot(number, checkpoint)
