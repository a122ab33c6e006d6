"""What one job holds ends at most that job: the others of its endpoint run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.scheduler.endpoint_dispatcher import EndpointDispatcher
from events.job import Job
from events.types import DeadLetter, Failed, Flavour
from tests.support.polling import eventually
from tests.support.scheduler.bench import Bench
from tests.support.scheduler.cluster import FakeJobActor

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


@asynccontextmanager
async def others_run(bench: Bench) -> AsyncGenerator[EndpointDispatcher]:
    """Inside and after the block jobs of the same lane and of others are dispatched."""
    async with bench.dispatching(slots=2) as dispatcher:
        yield dispatcher
        for lane in (3, 4):
            other = await bench.submit(lane=lane)
            await bench.running(other)
            await bench.finish(other)


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("flavour", Flavour)
async def test_a_request_of_any_shape_is_dispatched(
    bench: Bench, request_: dict[str, Any], flavour: Flavour
) -> None:
    hostile = await bench.submit(request=request_, flavour=flavour)
    async with others_run(bench):
        await bench.running(hostile)
        await bench.finish(hostile)


async def test_an_unreadable_job_leaves_the_queue_also_while_it_waits(bench: Bench) -> None:
    at_first, later = await bench.submit(), await bench.submit()
    bench.log.unreadable.add(at_first)
    bench.cluster.room = 0
    async with others_run(bench) as dispatcher:
        await bench.is_gone(at_first)
        await eventually(lambda: dispatcher.prefetch)
        bench.log.unreadable.add(later)
        await bench.is_gone(later)
        bench.cluster.give_room(1)


async def test_a_job_that_is_unreadable_after_its_actor_died_leaves_the_queue(bench: Bench) -> None:
    hostile = await bench.submit()
    async with others_run(bench):
        actor = await bench.running(hostile)
        bench.log.unreadable.add(hostile)
        actor.die()
        await bench.is_gone(hostile)


async def test_an_error_that_nobody_foresaw_ends_its_job_with_a_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = await bench.submit()
    run = FakeJobActor.run

    async def fail(actor: FakeJobActor, entry: Any, *rest: Any) -> Any:
        if entry.job_id == hostile:
            raise TypeError("a list is not hashable")
        return await run(actor, entry, *rest)

    monkeypatch.setattr(FakeJobActor, "run", fail)
    async with others_run(bench):
        await bench.is_gone(hostile)
    end = await bench.failure(hostile)
    assert "TypeError" in end.message
    assert "Submit the job again" in end.message
    assert end.dead_letter is DeadLetter.UNDISPATCHABLE


async def test_an_error_while_a_job_is_read_ends_it(bench: Bench) -> None:
    hostile = await bench.submit()
    read = bench.writer.load

    async def fail_once(job_id: str) -> Job | None:
        if job_id == hostile:
            bench.writer.load = read  # type: ignore[method-assign]
            raise OverflowError("date value out of range")
        return await read(job_id)

    bench.writer.load = fail_once  # type: ignore[method-assign]
    async with others_run(bench):
        await bench.is_gone(hostile)
    assert isinstance((await bench.job(hostile)).end, Failed)


async def test_the_entry_of_a_later_versions_job_stays_until_it_can_be_read(bench: Bench) -> None:
    later = await bench.submit()
    bench.log.of_later_version.add(later)
    async with bench.dispatching():
        for comes in (1, 2):
            other = await bench.submit()
            await bench.running(other)
            await bench.finish(other)
            await eventually(lambda times=comes: bench.log.reads[later] >= times)  # type: ignore[misc]
        assert await bench.is_queued(later)
        assert len(await bench.log.read(later)) == 2  # what is stored, and what cannot be read
        bench.log.of_later_version.clear()
        await bench.running(later)
        await bench.finish(later)


async def test_the_entry_stays_where_it_cannot_be_read_any_more(bench: Bench) -> None:
    later = await bench.submit()
    async with others_run(bench):
        actor = await bench.running(later)
        bench.log.of_later_version.add(later)
        actor.die()
    assert await bench.is_queued(later)
