from __future__ import annotations

import asyncio

import pytest

from actors.dispatch.cluster import ActorDied
from actors.dispatch.slot import Slot, SlotState
from actors.worker.job import RunOutcome
from events.memory.queues import MemoryJobQueue
from events.queue import QueueEntry
from tests.support.events import folded, submitted
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeCluster, FakeJobActor

NAME = "worker:default:d1:0:job:0"


class Bench:
    """A slot on a worker that has its place."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.changes: list[SlotState] = []
        self.slot = self.new_slot()

    def new_slot(self, *, jobs_per_actor: int = 2) -> Slot:
        slot = Slot(
            NAME,
            worker="worker:default:d1:0",
            cluster=self.cluster,
            jobs_per_actor=jobs_per_actor,
            on_change=lambda: self.changes.append(slot.state),
            retry_s=0.01,
        )
        return slot

    async def open(self) -> None:
        self.slot.open()
        await eventually(lambda: self.slot.state is SlotState.IDLE)

    def entry(self, job_id: str) -> QueueEntry:
        return MemoryJobQueue().entry(job_id, "1")

    async def running(self, job_id: str) -> tuple[asyncio.Task[RunOutcome], FakeJobActor]:
        run = asyncio.create_task(self.slot.run(self.entry(job_id), folded([submitted()])))
        actor = self.cluster.actors[NAME]
        await eventually(lambda: actor.job_id == job_id)
        return run, actor


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_slot_is_idle_once_its_actor_is_ready(bench: Bench) -> None:
    assert bench.slot.state is SlotState.STARTING
    await bench.open()
    assert bench.slot.writer == f"{NAME}@1"
    assert bench.changes == [SlotState.STARTING, SlotState.IDLE]


async def test_an_actor_that_does_not_start_is_killed_and_made_again(bench: Bench) -> None:
    bench.cluster.broken.add(NAME)
    bench.slot.open()
    await eventually(lambda: bench.cluster.killed.count(NAME) >= 3)
    bench.cluster.broken.clear()
    await eventually(lambda: bench.slot.state is SlotState.IDLE)


async def test_an_actor_that_still_runs_a_predecessors_job_is_waited_for(bench: Bench) -> None:
    actor = await bench.cluster.job_actor("worker:default:d1:0", NAME)
    actor.begin("old-job")
    bench.slot.open()
    await eventually(lambda: bench.slot.state is SlotState.BUSY)
    assert bench.slot.job_id == "old-job"
    actor.finish()
    await eventually(lambda: bench.slot.state is SlotState.IDLE)
    assert bench.slot.job_id is None
    assert bench.cluster.killed == []


async def test_a_replaced_actor_is_killed_and_another_made_under_its_name(bench: Bench) -> None:
    await bench.open()
    bench.slot.reserve(bench.entry("a-job"))
    bench.slot.replace()
    assert bench.slot.job_id is None
    assert bench.slot.state is SlotState.STARTING
    await eventually(lambda: bench.slot.state is SlotState.IDLE)
    assert bench.cluster.killed == [NAME]
    assert bench.slot.writer == f"{NAME}@2"


async def test_an_actor_that_could_not_be_killed_is_killed_later(bench: Bench) -> None:
    await bench.open()
    bench.cluster.failing_kills = 2
    bench.slot.replace()
    await eventually(lambda: bench.slot.state is SlotState.IDLE)
    assert bench.slot.writer == f"{NAME}@2"


async def test_a_replacement_ends_the_start_before_it(bench: Bench) -> None:
    bench.cluster.broken.add(NAME)
    bench.slot.open()
    await eventually(lambda: bench.cluster.killed)
    bench.cluster.broken.clear()
    bench.slot.replace()
    await eventually(lambda: bench.slot.state is SlotState.IDLE)
    assert bench.changes.count(SlotState.IDLE) == 1


async def test_a_slot_runs_the_job_of_an_entry(bench: Bench) -> None:
    await bench.open()
    run, actor = await bench.running("a-job")
    actor.finish(RunOutcome.ENDED)
    assert await run is RunOutcome.ENDED


async def test_an_actor_expires_with_the_jobs_that_it_was_given_by_anybody(bench: Bench) -> None:
    (await bench.cluster.job_actor("worker:default:d1:0", NAME)).jobs_run = 1
    await bench.open()
    assert not bench.slot.is_expired
    run, actor = await bench.running("a-job")
    actor.finish()
    await run
    assert bench.slot.is_expired


async def test_a_death_in_the_middle_of_a_job_is_told(bench: Bench) -> None:
    await bench.open()
    run, actor = await bench.running("a-job")
    actor.die()
    with pytest.raises(ActorDied):
        await run


async def test_a_slot_without_an_actor_takes_no_delivery(bench: Bench) -> None:
    assert not await bench.slot.take_delivery(bench.entry("a-job"), timeout_s=1)


async def test_a_detached_slot_leaves_its_actor_to_the_next_one(bench: Bench) -> None:
    await bench.open()
    await bench.slot.detach()
    assert bench.slot.state is SlotState.STARTING
    successor = bench.new_slot()
    successor.open()
    await eventually(lambda: successor.state is SlotState.IDLE)
    assert successor.writer == f"{NAME}@1"
    assert bench.cluster.killed == []


async def test_an_actor_that_another_dispatcher_uses_is_not_ended(bench: Bench) -> None:
    await bench.open()
    actor = bench.cluster.actors[NAME]
    actor.begin("a-job-of-another")
    bench.slot.renew()
    await eventually(lambda: bench.slot.state is SlotState.BUSY)
    assert bench.slot.job_id == "a-job-of-another"
    assert bench.cluster.killed == []
    actor.finish()
    await eventually(lambda: bench.slot.writer == f"{NAME}@2")
    assert actor.is_retired  # before its end: nobody could have given it a job meanwhile


async def test_an_actor_that_cannot_be_asked_is_ended_to_be_renewed(bench: Bench) -> None:
    await bench.open()
    bench.cluster.actors[NAME].answers = False
    bench.slot.renew()
    await eventually(lambda: bench.slot.writer == f"{NAME}@2")
