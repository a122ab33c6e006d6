"""One worker: its engine, its slots, and what becomes of it when they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors.scheduler.names import slot_name
from actors.scheduler.slots import SlotNumbers, SlotState
from actors.scheduler.worker import Startup, Worker
from actors.worker.engine_process import ServerInfo
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually, running
from tests.support.scheduler.cluster import FakeCluster

NAME = "worker:default:d1:0"
LONG_S = 1000.0


def new_worker(
    cluster: FakeCluster,
    *,
    slots: int = 2,
    jobs_per_actor: int = 0,
    actors_starting: int = 0,
    silence_s: float = 1000,
) -> Worker:
    return Worker(
        NAME,
        cluster=cluster,
        slots=SlotNumbers(most=slots, starting=actors_starting),
        jobs_per_actor=jobs_per_actor,
        startup=Startup(longest_s=1000, most_deaths=1000),
        engine_silence_s=silence_s,
        on_change=lambda: None,
        period_s=0.01,
    )


@pytest.fixture
async def worker(cluster: FakeCluster) -> AsyncIterator[Worker]:
    """One whose engine and slots are ready."""
    worker = new_worker(cluster)
    async with running(worker.keep()):
        await eventually(lambda: worker.is_ready and worker.idle_slot())
        yield worker


def has_idle_slots(worker: Worker, count: int) -> bool:
    return sum(slot.state is SlotState.IDLE for slot in worker.slots) == count


async def test_an_engine_that_does_not_answer_gets_no_job_until_it_does(
    cluster: FakeCluster, worker: Worker
) -> None:
    worker.checkpoints.add("a.safetensors")
    cluster.engines[NAME].answers = False
    await eventually(lambda: not worker.is_ready)
    assert worker.idle_slot() is None
    cluster.engines[NAME].answers = True
    await eventually(lambda: worker.idle_slot() is not None)
    assert worker.checkpoints == {"a.safetensors"}


async def test_a_ready_worker_shows_what_its_engine_lacks(
    cluster: FakeCluster, worker: Worker
) -> None:
    assert worker.describe()["trouble"] is None

    cluster.engines[NAME].server = ServerInfo("0.3.64", ("a-pack", "b"))

    text = "Packs that could not be imported: a-pack, b"
    await eventually(lambda: worker.describe()["trouble"] == text)
    assert worker.describe()["state"] == "ready"
    assert worker.startup.trouble is None


@pytest.mark.parametrize("has_its_place", [True, False])
async def test_an_engine_that_is_gone_is_made_anew_and_has_loaded_nothing(
    cluster: FakeCluster, worker: Worker, *, has_its_place: bool
) -> None:
    worker.checkpoints.add("a.safetensors")
    first = cluster.engines[NAME]
    if not has_its_place:
        await cluster.remove(NAME)
    first.is_gone = True
    await eventually(lambda: cluster.engines.get(NAME) not in {None, first} and worker.is_ready)
    assert NAME in cluster.groups
    assert worker.checkpoints == set()
    assert await worker.cancel_run("a-job", 2)
    assert cluster.engines[NAME].cancelled == [("a-job", 2)]


async def test_an_idle_engine_that_stands_still_is_ended(cluster: FakeCluster) -> None:
    worker = new_worker(cluster, silence_s=0.1)
    async with running(worker.keep()):
        await eventually(lambda: worker.is_ready)
        first = cluster.engines[NAME]
        first.answers = False
        await eventually(lambda: cluster.engines[NAME] is not first and worker.is_ready)
        assert first.kills == 1


@pytest.mark.parametrize("reason", ["it starts", "it works", "its job actor sees to it"])
async def test_an_engine_may_be_silent_for_a_reason(cluster: FakeCluster, reason: str) -> None:
    engine = await cluster.engine(NAME)
    engine.works_s = LONG_S if reason == "it works" else 0.0
    engine.answers = reason != "it starts"
    worker = new_worker(cluster, silence_s=0.05)
    async with running(worker.keep()):
        await eventually(lambda: has_idle_slots(worker, 2))
        await eventually(lambda: worker.is_ready or not engine.answers)
        if reason == "its job actor sees to it":
            next(iter(worker.slots)).reserve(MemoryJobQueue().entry("a-job", "1"))
        engine.answers = False
        asked = engine.asked
        await eventually(lambda: engine.asked > asked + 100)
        assert engine.kills == 0


@pytest.mark.parametrize(
    ("gpus", "setting", "jobs"), [(1.0, 0, 1), (0.25, 0, 1), (0.0, 0, 1000), (0.0, 3, 3)]
)
async def test_an_actor_runs_one_job_on_a_gpu_many_on_a_cpu_or_as_the_setting_says(
    gpus: float, setting: int, jobs: int
) -> None:
    cluster = FakeCluster(gpus=gpus)
    (await cluster.job_actor(NAME, slot_name(NAME, 0))).jobs_run = jobs
    (await cluster.job_actor(NAME, slot_name(NAME, 1))).jobs_run = jobs - 1
    worker = new_worker(cluster, jobs_per_actor=setting)
    async with running(worker.keep()):
        await eventually(lambda: has_idle_slots(worker, 2))
        assert [slot.is_expired for slot in worker.slots] == [True, False]


@pytest.mark.parametrize(("gpus", "setting", "starting"), [(1.0, 0, 4), (0.0, 0, 1), (0.0, 2, 2)])
async def test_more_actors_start_a_few_at_a_time(gpus: float, setting: int, starting: int) -> None:
    """Or they would take the processor from the jobs that run, and still more would be wanted."""
    """Or they would take the processor from the jobs that run, and still more would be wanted."""
    cluster = FakeCluster(gpus=gpus)
    worker = new_worker(cluster, slots=8, actors_starting=setting)
    async with running(worker.keep()):
        await eventually(lambda: has_idle_slots(worker, 2))
        cluster.broken = {slot_name(NAME, number) for number in range(2, 8)}
        for job in range(2):
            slot = await eventually(worker.idle_slot)
            slot.reserve(MemoryJobQueue().entry(f"job-{job}", "1"))
        await eventually(lambda: worker.is_ready)
        states = [slot.state for slot in worker.slots]
        assert states.count(SlotState.STARTING) == min(starting, 3)


async def test_before_it_has_an_engine_there_is_no_run_to_cancel(cluster: FakeCluster) -> None:
    assert await new_worker(cluster).cancel_run("a-job", 1) is None
    assert cluster.engines == {}


async def test_a_server_of_an_engine_is_described_while_it_does_not_answer(
    cluster: FakeCluster, worker: Worker
) -> None:
    cluster.engines[NAME].server = ServerInfo("0.3.64", ("a-pack",))
    described = {"version": "0.3.64", "failed_imports": ("a-pack",), "object_info_digest": None}
    await eventually(lambda: worker.describe()["server"] == described)
    cluster.engines[NAME].answers = False
    await eventually(lambda: not worker.is_ready)
    assert worker.describe()["server"] == described
