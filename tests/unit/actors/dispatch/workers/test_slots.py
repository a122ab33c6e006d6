"""How many job actors a worker has ready, by what runs, by what its engine takes, and over time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from actors.dispatch.names import slot_name
from actors.dispatch.slot import Slot, SlotState
from actors.dispatch.slots import SlotNumbers, Slots
from events.memory.queues import MemoryJobQueue
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeCluster

NAME = "worker:default:d1:0"


class Bench:
    """The slots of a worker whose engine takes 8 jobs, and a clock that stands still."""

    def __init__(self, **numbers: float) -> None:
        self.cluster = FakeCluster()
        self.now = 0.0
        self.changes = 0
        self.made: list[int] = []
        """The numbers of the slots that were made, in order."""
        self.slots = self.new_slots(**numbers)

    def new_slots(self, **numbers: float) -> Slots:
        given = {"expected": 8, "kept_free": 1, "idle_s": 100.0} | numbers
        return Slots(
            SlotNumbers(**given),  # type: ignore[arg-type]  # float stands for int here
            make=self._slot,
            on_change=self._note,
            clock=lambda: self.now,
        )

    def _note(self) -> None:
        self.changes += 1

    def _slot(self, number: int, on_change: Callable[[], None]) -> Slot:
        self.made.append(number)
        return Slot(
            slot_name(NAME, number),
            worker=NAME,
            cluster=self.cluster,
            jobs_per_actor=100,
            on_change=on_change,
            retry_s=0.01,
        )

    def count(self, state: SlotState) -> int:
        return sum(slot.state is state for slot in self.slots)

    async def open(self) -> None:
        self.slots.open([])
        await self.settle()

    async def settle(self) -> None:
        """Every slot has its actor."""
        await eventually(lambda: not self.count(SlotState.STARTING))

    async def take(self, jobs: int) -> None:
        for number in range(jobs):
            slot = await eventually(self.slots.idle)
            slot.reserve(MemoryJobQueue().entry(f"job-{number}", "1"))
        await self.settle()

    def end_jobs(self, jobs: int) -> None:
        busy = [slot for slot in self.slots if slot.state is SlotState.BUSY]
        for slot in busy[:jobs]:
            slot.release()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_worker_that_runs_nothing_has_the_spare_ones_alone(bench: Bench) -> None:
    await bench.open()
    assert (len(bench.slots), bench.count(SlotState.IDLE)) == (2, 2)


@pytest.mark.parametrize(("jobs", "opened"), [(1, 3), (2, 5), (4, 8), (5, 9), (8, 9)])
async def test_the_next_ones_are_started_as_jobs_come(jobs: int, opened: int) -> None:
    bench = Bench()
    await bench.open()
    await bench.take(jobs)
    assert len(bench.slots) == len(bench.cluster.actors) == opened


async def test_there_are_as_many_as_the_engine_takes_and_those_that_are_kept_free(
    bench: Bench,
) -> None:
    await bench.open()
    await bench.take(9)
    assert len(bench.slots) == 9
    assert bench.slots.idle() is None
    bench.slots.fit(12)
    await bench.take(4)
    assert len(bench.slots) == 13
    assert bench.slots.idle() is None


async def test_a_fixed_number_is_not_changed_by_the_engine() -> None:
    bench = Bench(most=3)
    await bench.open()
    bench.slots.fit(12)
    await bench.take(3)
    assert len(bench.slots) == 3
    assert (bench.slots.free(), bench.slots.idle()) == (0, None)


async def test_those_that_are_not_open_yet_are_free_too(bench: Bench) -> None:
    await bench.open()
    assert bench.slots.free() == 9
    await bench.take(5)
    assert bench.slots.free() == 4


async def test_one_that_does_not_start_is_not_free(bench: Bench) -> None:
    """Or the last free slot, which is for who runs nothing, might be one that nobody can use."""
    bench.cluster.broken = {slot_name(NAME, 1)}
    bench.slots.open([])
    await eventually(lambda: bench.count(SlotState.IDLE) == 1)
    assert bench.slots.free() == 8


@pytest.mark.parametrize("starting", [1, 3])
async def test_few_start_at_a_time(starting: int) -> None:
    """Or they would take the processor from the jobs that run, and still more would be wanted."""
    bench = Bench()
    bench.slots.open([], starting=starting)
    await bench.settle()
    bench.cluster.broken = {slot_name(NAME, number) for number in range(2, 9)}
    for number in range(2):
        slot = await eventually(bench.slots.idle)
        slot.reserve(MemoryJobQueue().entry(f"job-{number}", "1"))
    assert bench.count(SlotState.STARTING) == starting
    bench.slots.fit(8)
    assert bench.count(SlotState.STARTING) == starting
    bench.cluster.broken = set()
    await bench.settle()
    assert len(bench.slots) == 5


async def test_one_that_does_not_start_holds_up_the_others_for_a_while_only() -> None:
    bench = Bench()
    await bench.open()
    bench.cluster.broken = {slot_name(NAME, 2)}
    slot = await eventually(bench.slots.idle)
    slot.reserve(MemoryJobQueue().entry("job", "1"))
    bench.slots.fit(12)
    slot = await eventually(bench.slots.idle)
    slot.reserve(MemoryJobQueue().entry("another", "1"))
    assert len(bench.slots) == 3
    bench.now += 11
    bench.slots.fit(12)
    await eventually(lambda: len(bench.slots) == 5)
    assert bench.count(SlotState.STARTING) == 1


async def test_an_engine_that_takes_fewer_gets_no_further_job(bench: Bench) -> None:
    await bench.open()
    await bench.take(4)
    bench.slots.fit(2)
    assert (bench.slots.free(), bench.slots.idle()) == (0, None)
    bench.end_jobs(2)
    assert bench.slots.free() == 1
    assert bench.slots.idle() is not None


async def test_whoever_waits_hears_when_the_engine_takes_more_again(bench: Bench) -> None:
    await bench.open()
    await bench.take(4)
    bench.slots.fit(3)
    assert bench.slots.idle() is None
    changes = bench.changes
    bench.slots.fit(3)
    assert bench.changes == changes
    bench.slots.fit(8)
    assert bench.changes > changes
    assert bench.slots.idle() is not None


async def test_what_nobody_needed_for_some_time_is_closed(bench: Bench) -> None:
    await bench.open()
    await bench.take(6)
    bench.end_jobs(6)
    bench.now = 100.0
    bench.slots.fit(8)
    assert len(bench.slots) == 9  # they were needed since the last look
    bench.now = 199.0
    bench.slots.fit(8)
    assert len(bench.slots) == 9
    bench.now = 200.0
    bench.slots.fit(8)
    await eventually(lambda: len(bench.cluster.actors) == 2)
    assert sorted(bench.cluster.actors) == [slot_name(NAME, 0), slot_name(NAME, 1)]


async def test_as_many_stay_as_the_jobs_of_that_time_needed_at_their_peak(bench: Bench) -> None:
    await bench.open()
    await bench.take(6)
    bench.end_jobs(6)
    bench.now = 100.0
    bench.slots.fit(8)
    await bench.take(2)
    bench.end_jobs(2)
    bench.now = 200.0
    bench.slots.fit(8)
    await eventually(lambda: len(bench.cluster.actors) == 5)


async def test_one_that_does_not_start_is_closed_before_one_that_did(bench: Bench) -> None:
    """Or as many as the most that ever ran try without end to start, each once a second."""
    await bench.open()
    await bench.take(6)
    *working, first, second = list(bench.slots)[:6]
    bench.cluster.broken = {first.name, second.name}
    for slot in (first, second):
        slot.replace()
    for slot in working:
        slot.release()
    for bench.now in (100.0, 200.0):
        bench.slots.fit(8)
    await eventually(lambda: len(bench.cluster.actors) == 2)
    assert (len(bench.slots), bench.count(SlotState.IDLE)) == (2, 2)


async def test_one_that_runs_a_job_is_not_closed(bench: Bench) -> None:
    await bench.open()
    await bench.take(6)
    last = list(bench.slots)[5]
    bench.end_jobs(5)
    for bench.now in (100.0, 200.0, 300.0):
        bench.slots.fit(8)
    assert last.state is SlotState.BUSY
    assert last in list(bench.slots)


async def test_a_place_that_is_being_closed_is_not_opened_under_the_same_name(
    bench: Bench,
) -> None:
    await bench.open()
    await bench.take(2)
    bench.end_jobs(2)
    bench.cluster.failing_kills = 1000
    for bench.now in (100.0, 200.0):
        bench.slots.fit(8)
    assert len(bench.slots) == 2
    await bench.take(1)
    assert [slot.name for slot in bench.slots][-1] == slot_name(NAME, 5)
    bench.cluster.failing_kills = 0
    await eventually(lambda: len(bench.cluster.killed) == 3)
    await bench.slots.detach()


async def test_a_successor_finds_the_jobs_in_every_slot(bench: Bench) -> None:
    await bench.open()
    await bench.take(4)
    await bench.slots.detach()
    bench.cluster.actors[slot_name(NAME, 7)].begin("a-job")
    bench.slots = bench.new_slots()
    bench.slots.open(await bench.cluster.slots(NAME))
    await bench.settle()
    assert [slot.job_id for slot in bench.slots if slot.job_id] == ["a-job"]
    assert len(bench.slots) == 8


async def test_each_actor_of_a_predecessor_is_found_by_one_slot(bench: Bench) -> None:
    """Another one of the same name would kill it, where it once gives no answer."""
    await bench.open()
    await bench.take(2)
    await bench.slots.detach()
    bench.made.clear()
    bench.slots = bench.new_slots()
    bench.slots.open(await bench.cluster.slots(NAME))
    await bench.settle()
    assert sorted(bench.made) == [0, 1, 2, 3, 4]


async def test_those_that_are_left_are_neither_closed_nor_replaced(bench: Bench) -> None:
    await bench.open()
    await bench.take(1)
    bench.cluster.failing_kills = 1000
    bench.end_jobs(1)
    for bench.now in (100.0, 200.0):
        bench.slots.fit(8)
    actors = set(bench.cluster.actors)
    await bench.slots.detach()
    bench.cluster.failing_kills = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(0.03):
            await asyncio.Event().wait()
    assert set(bench.cluster.actors) == actors
