"""What one job holds ends at most that job: the others of its endpoint run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.dispatch.endpoint import EndpointDispatcher
from events.job import Job
from events.log import JobWriter
from events.types import DeadLetter, Failed, Flavour
from tests.support.dispatch import LEASE_S, Bench
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeJobActor

NODE = {"class_type": "KSampler"}
REQUESTS: list[dict[str, Any]] = [
    {},
    {"prompt": None},
    {"prompt": [1]},
    {"prompt": {"1": None}},
    {"prompt": {"1": NODE | {"inputs": None}}},
    {"prompt": {"1": NODE | {"inputs": 5}}},
    {"prompt": {"1": NODE | {"inputs": "ckpt_name"}}},
    {"prompt": {"1": NODE | {"inputs": {"ckpt_name": ["a", 0]}}}},
]


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
def bench(log: FailingLog) -> Bench:
    bench = Bench()
    bench.log, bench.writer = log, JobWriter(log)
    return bench


@asynccontextmanager
async def others_run(bench: Bench) -> AsyncGenerator[EndpointDispatcher]:
    """Inside and after the block jobs of the same lane and of others are dispatched."""
    async with bench.dispatching(slots=2) as dispatcher:
        yield dispatcher
        for lane in (3, 4):
            other = await bench.submit(lane=lane)
            await bench.running(other)
            await bench.finish(other)


async def gone(bench: Bench, job_id: str) -> None:
    async def is_gone() -> bool:
        return not await bench.is_queued(job_id)

    await eventually(is_gone, within_s=5 * LEASE_S)


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("flavour", Flavour)
async def test_a_request_of_any_shape_is_dispatched(
    bench: Bench, request_: dict[str, Any], flavour: Flavour
) -> None:
    hostile = await bench.submit(request=request_, flavour=flavour)
    async with others_run(bench):
        await bench.running(hostile)
        await bench.finish(hostile)


async def test_an_unreadable_job_leaves_the_queue_for_good(bench: Bench, log: FailingLog) -> None:
    hostile = await bench.submit()
    log.unreadable.add(hostile)
    async with others_run(bench):
        await gone(bench, hostile)


async def test_a_job_that_becomes_unreadable_while_it_waits_leaves_the_queue(
    bench: Bench, log: FailingLog
) -> None:
    bench.cluster.room = 0
    hostile = await bench.submit()
    async with others_run(bench) as dispatcher:
        await eventually(lambda: dispatcher.in_hand)
        log.unreadable.add(hostile)
        await gone(bench, hostile)
        bench.cluster.give_room(1)


async def test_a_job_that_is_unreadable_after_its_actor_died_leaves_the_queue(
    bench: Bench, log: FailingLog
) -> None:
    hostile = await bench.submit()
    async with others_run(bench):
        actor = await bench.running(hostile)
        log.unreadable.add(hostile)
        actor.die()
        await gone(bench, hostile)


async def test_an_error_that_nobody_foresaw_ends_its_job_with_a_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = await bench.submit()
    run = FakeJobActor.run

    async def fail(actor: FakeJobActor, entry: Any, job: Any) -> Any:
        if entry.job_id == hostile:
            raise TypeError("a list is not hashable")
        return await run(actor, entry, job)

    monkeypatch.setattr(FakeJobActor, "run", fail)
    async with others_run(bench):
        await gone(bench, hostile)
    end = (await bench.job(hostile)).end
    assert isinstance(end, Failed)
    assert "TypeError" in end.message
    assert "Submit it again" in end.message
    assert end.dead_letter is DeadLetter.UNDISPATCHABLE


async def test_an_error_while_a_job_is_read_ends_it(bench: Bench, log: FailingLog) -> None:
    hostile = await bench.submit()
    read = bench.writer.load

    async def fail_once(job_id: str) -> Job | None:
        if job_id == hostile:
            bench.writer.load = read  # type: ignore[method-assign]
            raise OverflowError("date value out of range")
        return await read(job_id)

    bench.writer.load = fail_once  # type: ignore[method-assign]
    async with others_run(bench):
        await gone(bench, hostile)
    assert isinstance((await bench.job(hostile)).end, Failed)
