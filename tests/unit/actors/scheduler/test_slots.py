"""How many job actors a worker has ready, and the life of one slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors.scheduler.names import slot_name
from actors.scheduler.slots import Slot, SlotNumbers, Slots, SlotState
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually
from tests.support.scheduler.cluster import FakeCluster

NAME = "worker:default:d1:0"


def new_slot(
    cluster: FakeCluster, number: int, on_change: Callable[[], None], *, jobs_per_actor: int = 100
) -> Slot:
    return Slot(
        slot_name(NAME, number),
        worker=NAME,
        cluster=cluster,
        jobs_per_actor=jobs_per_actor,
        on_change=on_change,
        retry_s=0.01,
    )


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
        return new_slot(self.cluster, number, on_change)

    def count(self, state: SlotState) -> int:
        return sum(slot.state is state for slot in self.slots)

    async def open(self) -> None:
        self.slots.open([])
        await self.settle()

    async def settle(self) -> None:
        """Every slot has its actor."""
        await eventually(lambda: not self.count(SlotState.STARTING))

    async def reserve(self) -> None:
        slot = await eventually(self.slots.idle)
        slot.reserve(MemoryJobQueue().entry("a-job", "1"))

    async def take(self, jobs: int) -> None:
        for _ in range(jobs):
            await self.reserve()
        await self.settle()

    def pass_idle_time(self) -> None:
        for self.now in (100.0, 200.0):
            self.slots.fit(8)

    def end_jobs(self, jobs: int) -> None:
        busy = [slot for slot in self.slots if slot.state is SlotState.BUSY]
        for slot in busy[:jobs]:
            slot.release()


@pytest.fixture
async def bench() -> Bench:
    """A worker that has just opened."""
    bench = Bench()
    await bench.open()
    return bench


@pytest.mark.parametrize(("jobs", "opened"), [(0, 2), (1, 3), (2, 5), (4, 8), (5, 9), (8, 9)])
async def test_the_next_ones_are_started_as_jobs_come(bench: Bench, jobs: int, opened: int) -> None:
    await bench.take(jobs)
    assert len(bench.slots) == len(bench.cluster.actors) == opened


async def test_there_are_as_many_as_the_engine_takes_and_those_kept_free(bench: Bench) -> None:
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


async def test_one_that_does_not_start_holds_up_the_others_for_a_while_only(bench: Bench) -> None:
    bench.cluster.broken = {slot_name(NAME, 2)}
    await bench.reserve()
    bench.slots.fit(12)
    assert bench.slots.free() == 12 + 1 - 1 - 1, "a slot that no job can use is not free"
    await bench.reserve()
    assert len(bench.slots) == 3
    bench.now += 11
    bench.slots.fit(12)
    await eventually(lambda: len(bench.slots) == 5)
    assert bench.count(SlotState.STARTING) == 1


async def test_an_engine_that_takes_fewer_gets_no_further_job(bench: Bench) -> None:
    await bench.take(4)
    bench.slots.fit(2)
    assert (bench.slots.free(), bench.slots.idle()) == (0, None)
    bench.end_jobs(2)
    assert bench.slots.free() == 1
    await bench.take(1)
    assert bench.slots.idle() is None
    changes = bench.changes
    bench.slots.fit(2)
    assert bench.changes == changes
    bench.slots.fit(8)
    assert bench.changes > changes, "the change was not reported"
    assert bench.slots.idle() is not None


@pytest.mark.parametrize(("jobs", "left"), [(0, 2), (2, 5)])
async def test_as_many_stay_as_the_jobs_of_some_time_needed_at_their_peak(
    bench: Bench, jobs: int, left: int
) -> None:
    await bench.take(6)
    bench.end_jobs(6)
    bench.now = 100.0
    bench.slots.fit(8)
    assert len(bench.slots) == 9  # they were needed since the last look
    await bench.take(jobs)
    bench.end_jobs(jobs)
    bench.now = 199.0
    bench.slots.fit(8)
    assert len(bench.slots) == 9
    bench.now = 200.0
    bench.slots.fit(8)
    await eventually(lambda: len(bench.cluster.actors) == left)
    assert sorted(bench.cluster.actors) == [slot_name(NAME, number) for number in range(left)]


async def test_one_that_does_not_start_is_closed_before_one_that_did(bench: Bench) -> None:
    """Or as many as the most that ever ran try without end to start, each once a second."""
    await bench.take(6)
    *working, first, second = list(bench.slots)[:6]
    bench.cluster.broken = {first.name, second.name}
    for slot in (first, second):
        slot.replace()
    for slot in working:
        slot.release()
    bench.pass_idle_time()
    await eventually(lambda: len(bench.cluster.actors) == 2)
    assert (len(bench.slots), bench.count(SlotState.IDLE)) == (2, 2)


async def test_one_that_runs_a_job_is_not_closed(bench: Bench) -> None:
    await bench.take(6)
    last = list(bench.slots)[5]
    bench.end_jobs(5)
    for bench.now in (100.0, 200.0, 300.0):
        bench.slots.fit(8)
    assert last.state is SlotState.BUSY
    assert last in list(bench.slots)


async def test_a_place_that_is_being_closed_is_not_opened_under_the_same_name(bench: Bench) -> None:
    await bench.take(2)
    bench.end_jobs(2)
    bench.cluster.failing_kills = 1000
    bench.pass_idle_time()
    assert len(bench.slots) == 2
    await bench.take(1)
    assert [slot.name for slot in bench.slots][-1] == slot_name(NAME, 5)
    bench.cluster.failing_kills = 0
    await eventually(lambda: len(bench.cluster.killed) == 3)
    await bench.slots.detach()


async def test_a_successor_finds_the_jobs_in_every_slot(bench: Bench) -> None:
    await bench.take(4)
    await bench.slots.detach()
    bench.cluster.actors[slot_name(NAME, 7)].begin("a-job")
    bench.slots = bench.new_slots()
    bench.made.clear()
    bench.slots.open(await bench.cluster.slots(NAME))
    await bench.settle()
    assert sorted(bench.made) == list(range(8)), "two of one name would end each other's actor"
    assert [slot.job_id for slot in bench.slots if slot.job_id] == ["a-job"]
    assert len(bench.slots) == 8


async def test_those_that_are_left_are_neither_closed_nor_replaced(bench: Bench) -> None:
    await bench.take(1)
    bench.cluster.failing_kills = 1000
    bench.end_jobs(1)
    bench.pass_idle_time()
    actors = set(bench.cluster.actors)
    await bench.slots.detach()
    bench.cluster.failing_kills = 0
    await asyncio.sleep(0.03)  # three times what a kill that failed waits
    assert set(bench.cluster.actors) == actors


SLOT = slot_name(NAME, 0)


class SlotBench:
    """A slot on a worker that has its place."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.changes: list[SlotState] = []
        self.slot = new_slot(
            self.cluster, 0, lambda: self.changes.append(self.slot.state), jobs_per_actor=2
        )

    async def is_idle(self) -> None:
        await eventually(lambda: self.slot.state is SlotState.IDLE)

    async def open(self) -> None:
        self.slot.open()
        await self.is_idle()


@pytest.fixture
def one() -> SlotBench:
    return SlotBench()


@pytest.fixture
async def opened(one: SlotBench) -> SlotBench:
    assert one.slot.state is SlotState.STARTING
    await one.open()
    return one


async def test_a_slot_is_idle_once_its_actor_is_ready(opened: SlotBench) -> None:
    assert opened.slot.actor_name == f"{SLOT}@1"
    assert opened.changes == [SlotState.STARTING, SlotState.IDLE]


async def test_an_actor_that_still_runs_a_predecessors_job_is_waited_for(one: SlotBench) -> None:
    actor = await one.cluster.job_actor(NAME, SLOT)
    actor.begin("old-job")
    one.slot.open()
    await eventually(lambda: one.slot.state is SlotState.BUSY)
    assert one.slot.job_id == "old-job"
    actor.finish()
    await one.is_idle()
    assert one.slot.job_id is None
    assert one.cluster.killed == []


@pytest.mark.parametrize("failing_kills", [0, 2])
async def test_a_replaced_actor_is_killed_and_another_made_under_its_name(
    opened: SlotBench, failing_kills: int
) -> None:
    opened.slot.reserve(MemoryJobQueue().entry("a-job", "1"))
    opened.cluster.failing_kills = failing_kills
    opened.slot.replace()
    assert (opened.slot.job_id, opened.slot.state) == (None, SlotState.STARTING)
    await opened.is_idle()
    assert opened.cluster.killed == [SLOT]
    assert opened.slot.actor_name == f"{SLOT}@2"


async def test_a_replacement_ends_the_start_before_it(one: SlotBench) -> None:
    one.cluster.broken.add(SLOT)
    one.slot.open()
    await eventually(lambda: one.cluster.killed)
    one.cluster.broken.clear()
    one.slot.replace()
    await one.is_idle()
    assert one.changes.count(SlotState.IDLE) == 1


async def test_an_actor_that_another_dispatcher_uses_is_not_ended(opened: SlotBench) -> None:
    actor = opened.cluster.actors[SLOT]
    actor.begin("a-job-of-another")
    opened.slot.recycle()
    await eventually(lambda: opened.slot.state is SlotState.BUSY)
    assert opened.slot.job_id == "a-job-of-another"
    assert opened.cluster.killed == []
    actor.finish()
    await eventually(lambda: opened.slot.actor_name == f"{SLOT}@2")
    assert actor.is_retired  # before its end: nobody could have given it a job meanwhile


async def test_an_actor_that_cannot_be_asked_is_ended_to_be_renewed(opened: SlotBench) -> None:
    opened.cluster.actors[SLOT].answers = False
    opened.slot.recycle()
    await eventually(lambda: opened.slot.actor_name == f"{SLOT}@2")
