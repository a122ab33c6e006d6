"""How the jobs of several owners share the slots of an endpoint."""

from __future__ import annotations

import asyncio

import pytest

from actors.waiting.running_jobs import RunningJobs
from events.store.records import Endpoint
from settings.keys import OwnerSettings
from tests.support.dispatch import Bench
from tests.support.polling import eventually

HERE = Endpoint("here", jobs_per_worker=4)
THERE = Endpoint("there", jobs_per_worker=4)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def running_owners(bench: Bench, owner_of: dict[str, str]) -> list[str]:
    actors = bench.cluster.actors.values()
    return sorted(owner_of[each.job_id] for each in actors if each.job_id is not None)


async def submitted_by(bench: Bench, owner: str, *, lanes: range) -> dict[str, str]:
    """A job of the owner in each lane, with its owner: in life one owner has one lane."""
    return {await bench.submit(owner=owner, lane=lane): owner for lane in lanes}


async def settled(bench: Bench, owner_of: dict[str, str], *, running: int) -> list[str]:
    """Who runs, once so many jobs run and no further one starts."""
    await eventually(lambda: len(running_owners(bench, owner_of)) == running)
    await asyncio.sleep(0.05)
    return running_owners(bench, owner_of)


async def test_the_last_free_slot_is_for_an_owner_who_runs_nothing(bench: Bench) -> None:
    jobs = await submitted_by(bench, "alice", lanes=range(8))
    async with bench.dispatching(slots=4, slots_kept_free=1):
        assert await settled(bench, jobs, running=3) == ["alice"] * 3
        jobs |= await submitted_by(bench, "bob", lanes=range(8, 16))
        assert await settled(bench, jobs, running=4) == ["alice"] * 3 + ["bob"]


async def test_slots_that_become_free_go_to_the_owners_in_turn(bench: Bench) -> None:
    jobs = await submitted_by(bench, "alice", lanes=range(8))
    async with bench.dispatching(slots=4):
        assert await settled(bench, jobs, running=4) == ["alice"] * 4
        others = await submitted_by(bench, "bob", lanes=range(8, 16))
        everyone = jobs | others
        await asyncio.sleep(0.05)
        for _ in range(4):
            mine = next(each for each in jobs if bench.cluster.running(each))
            await bench.finish(mine)
            await settled(bench, everyone, running=4)
        assert running_owners(bench, everyone) == ["alice", "alice", "bob", "bob"]


async def test_a_backlog_delays_a_single_job_by_what_runs_and_one_turn(bench: Bench) -> None:
    """Each job says no cost, so each is a turn of its own."""
    backlog = [await bench.submit(owner="alice", lane=1) for _ in range(200)]
    async with bench.dispatching(slots=2):
        for job_id in backlog[:5]:
            await bench.finish(job_id)
        single = await bench.submit(owner="bob", lane=2)
        while bench.cluster.running(single) is None:
            running = await eventually(
                lambda: next((each for each in backlog if bench.cluster.running(each)), None)
            )
            await bench.finish(running)
            await eventually(lambda running=running: bench.cluster.running(running) is None)
            await asyncio.sleep(0.01)
        ended = len(backlog) - await bench.queue.depth("default") + 1
    assert ended <= 5 + 2 + 1


async def test_an_owner_alone_has_every_slot_where_none_is_kept_free(bench: Bench) -> None:
    jobs = await submitted_by(bench, "alice", lanes=range(8))
    async with bench.dispatching(slots=4, slots_kept_free=0):
        assert await settled(bench, jobs, running=4) == ["alice"] * 4


async def test_a_worker_of_one_slot_keeps_none_free(bench: Bench) -> None:
    jobs = await submitted_by(bench, "alice", lanes=range(2))
    async with bench.dispatching(slots=1, slots_kept_free=1):
        assert await settled(bench, jobs, running=1) == ["alice"]


async def test_a_burst_of_one_owner_leaves_a_slot_of_those_that_its_engine_makes(
    bench: Bench,
) -> None:
    jobs = await submitted_by(bench, "alice", lanes=range(8))
    async with bench.dispatching(slots=0, slots_kept_free=1):
        assert await settled(bench, jobs, running=4) == ["alice"] * 4
        jobs |= await submitted_by(bench, "bob", lanes=range(8, 10))
        assert await settled(bench, jobs, running=5) == ["alice"] * 4 + ["bob"]


async def test_an_owner_at_the_number_waits_and_others_pass(bench: Bench) -> None:
    jobs = await submitted_by(bench, "alice", lanes=range(4))
    async with bench.dispatching(slots=4, max_running_jobs=1):
        assert await settled(bench, jobs, running=1) == ["alice"]
        jobs |= await submitted_by(bench, "bob", lanes=range(4, 8))
        assert await settled(bench, jobs, running=2) == ["alice", "bob"]
        mine = next(each for each in jobs if bench.cluster.running(each))
        await bench.finish(mine)
        assert await settled(bench, jobs, running=2) == ["alice", "bob"]


def test_the_number_holds_over_all_endpoints() -> None:
    jobs = RunningJobs(OwnerSettings(max_running_jobs=2))
    jobs.add("alice", HERE)
    assert jobs.may_start("alice")
    jobs.add("alice", THERE)
    assert not jobs.may_start("alice")
    assert jobs.may_start("bob")
    jobs.remove("alice", HERE)
    assert jobs.may_start("alice")


def test_an_end_is_told_to_those_who_wait() -> None:
    jobs, told = RunningJobs(OwnerSettings()), list[str]()
    jobs.add("alice", HERE)
    with jobs.telling(told.append):
        jobs.remove("alice", HERE)
    jobs.add("alice", HERE)
    jobs.remove("alice", HERE)
    assert told == ["alice"]
