"""Which job starts next and where: a warm worker is worth a wait, but not a long one."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from actors.scheduler.endpoint_dispatcher import EndpointDispatcher
from actors.scheduler.fairness import RunningJobs, WaitingJob
from actors.scheduler.slot_index import SlotIndex
from actors.scheduler.slots import MinSet
from actors.scheduler.status import EndRate
from actors.scheduler.worker import Worker
from events.log import JobWriter
from events.store.records import Endpoint
from settings.keys import OwnerSettings
from tests.support.memory.log import MemoryLog
from tests.support.memory.queues import MemoryJobQueue
from tests.support.scheduler.cluster import FakeCluster
from tests.support.scheduler.pool import new_pool

WAIT_S = 3.0


class FakeSlot:
    job_id: str | None = None


class FakeWorker:
    """One of so many slots."""

    def __init__(self, slots: int) -> None:
        self.slots = [FakeSlot() for _ in range(slots)]
        self.checkpoints: set[str] = set()
        self.takes_jobs = True

    def idle_slot(self) -> FakeSlot | None:
        idle = (each for each in self.slots if each.job_id is None)
        return next(idle, None) if self.takes_jobs else None

    def free_slots(self) -> int:
        return sum(each.job_id is None for each in self.slots) if self.takes_jobs else 0


class Bench:
    """The workers and the waiting jobs of an endpoint, and what its dispatcher chooses of both."""

    def __init__(self, *slots: int, most_running: int = 0) -> None:
        self.workers = [FakeWorker(number) for number in slots]
        self.endpoint = Endpoint("default")
        self.running_jobs = RunningJobs(OwnerSettings(max_running_jobs=most_running))
        self.owners: dict[str, str] = {}
        """The owners of the running jobs."""
        pool = new_pool(FakeCluster())
        self.free = pool.slot_index
        self.dispatcher = EndpointDispatcher(
            self.endpoint,
            queue=MemoryJobQueue(),
            writer=JobWriter(MemoryLog()),
            pool=pool,
            running_jobs=self.running_jobs,
            end_rate=EndRate(),
            secret=b"a secret for the tests",
        )
        self.waiting = self.dispatcher._waiting
        for number in range(len(slots)):
            self.update(number)

    @classmethod
    def with_a_and_b(cls, wanted: str = "") -> Bench:
        """A worker with each of two checkpoints. The first one runs, and what wants it waits."""
        here = cls(1, 1)
        for number, checkpoint in enumerate("ab"):
            here.put(f"j{number}", checkpoint)
            assert here.start() == (f"j{number}", number)
        for checkpoint in wanted:
            here.put(f"wants-{checkpoint}", checkpoint)
        here.end("j1")
        return here

    def update(self, number: int) -> None:
        self.free.update(number, cast(Worker, self.workers[number]))

    def put(self, job_id: str, checkpoint: str | None = None, *, owner: str | None = None) -> None:
        self.waiting.put(WaitingJob(job_id, owner or job_id, 10.0, checkpoint=checkpoint))

    def start(self, now: float = 0.0) -> tuple[str, int] | None:
        """The next job and the number of its worker."""
        chosen = self.dispatcher._choose(now)
        if chosen is None:
            return None
        job, number = chosen
        _, slot = self.free.pick_slot(number, job.checkpoint)
        slot.job_id = job.job_id
        self.owners[job.job_id] = job.owner
        self.running_jobs.add(job.owner, self.endpoint)
        self.waiting.charge(job)
        self.waiting.note_running(job.owner)
        self.update(number)
        return job.job_id, number

    def end(self, job_id: str) -> None:
        found = self.free.slot_of(job_id)
        assert found is not None
        found[1].job_id = None
        owner = self.owners.pop(job_id)
        self.update(self.workers.index(cast(FakeWorker, found[0])))
        self.running_jobs.remove(owner, self.endpoint)
        self.waiting.release(owner)
        self.waiting.note_running(owner)


def test_a_job_goes_where_its_checkpoint_is_and_else_to_a_worker_without_any() -> None:
    here = Bench(2, 2, 2)
    for number, checkpoint in enumerate(["a", "b", "a", "b", "c"]):
        here.put(f"j{number}", checkpoint)
    assert [here.start() for _ in range(5)] == [
        ("j0", 0), ("j1", 1), ("j2", 0), ("j3", 1), ("j4", 2)
    ]  # fmt: skip


def test_a_job_whose_checkpoint_nobody_has_takes_the_worker_that_was_used_least_lately() -> None:
    here = Bench.with_a_and_b()
    here.end("j0")
    here.put("c", "c")
    assert here.start() == ("c", 1)


def test_a_job_waits_for_a_warm_worker_while_others_pass_and_then_takes_any() -> None:
    here = Bench.with_a_and_b("a")
    assert here.start(now=5.0) is None
    assert here.dispatcher._wake_at == 5.0 + WAIT_S
    here.put("wants-b", "b")
    assert here.start(now=6.0) == ("wants-b", 1)
    here.end("wants-b")
    assert here.start(now=5.0 + WAIT_S - 0.01) is None
    assert here.start(now=5.0 + WAIT_S) == ("wants-a", 1)


def test_a_warm_worker_that_gets_room_ends_the_wait() -> None:
    here = Bench.with_a_and_b("a")
    assert here.start(now=5.0) is None
    here.end("j0")
    assert here.start(now=6.0) == ("wants-a", 0)


def test_nobody_waits_for_a_worker_that_takes_no_jobs() -> None:
    here = Bench.with_a_and_b("a")
    here.workers[0].takes_jobs = False
    here.update(0)
    assert here.start(now=5.0) == ("wants-a", 1)


def test_an_owner_at_their_number_is_passed_however_many_there_are() -> None:
    here = Bench(100, most_running=1)
    for number in range(50):
        here.put(f"first-{number}", owner=f"o{number}")
        here.put(f"second-{number}", owner=f"o{number}")
    started = [here.start() for _ in range(50)]
    assert {job[0] for job in started if job} == {f"first-{number}" for number in range(50)}
    assert here.start() is None
    here.end("first-7")
    assert here.start() == ("second-7", 0)


@given(steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))))
def test_what_is_free_is_the_same_as_by_looking(steps: list[tuple[int, int, int]]) -> None:
    """Against a look at every worker after each change."""
    workers = [FakeWorker(number) for number in (1, 1, 2, 3)]
    free = SlotIndex()
    there: dict[int, FakeWorker] = {}
    for step, (action, number, slot) in enumerate(steps):
        worker = workers[number]
        each = worker.slots[slot % len(worker.slots)]
        if action == 0:
            each.job_id = None if each.job_id else f"job-{step}"
        elif action == 1:
            worker.takes_jobs = not worker.takes_jobs
        elif action == 2:
            worker.checkpoints = worker.checkpoints ^ {f"c{slot}"}
        if action == 3:
            there.pop(number, None)
            free.remove(number)
        else:
            there[number] = worker
            free.update(number, cast(Worker, worker))
        check(free, there)


def check(free: SlotIndex, there: dict[int, FakeWorker]) -> None:
    idle = {number for number, each in there.items() if each.idle_slot() is not None}
    assert free.count == sum(each.free_slots() for each in there.values())
    assert free.lowest_idle() == min(idle, default=None)
    assert free.idle_without_checkpoint() == min(
        (n for n in idle if not there[n].checkpoints), default=None
    )
    assert (free.least_recently_used() in idle) if idle else free.least_recently_used() is None
    for checkpoint in ("c0", "c1", "c2", "c3"):
        holders = {n for n in there if there[n].takes_jobs and checkpoint in there[n].checkpoints}
        assert free.is_warm(checkpoint) == bool(holders)
        assert free.idle_holder_of(checkpoint) == min(holders & idle, default=None)
    jobs = {slot.job_id: each for each in there.values() for slot in each.slots if slot.job_id}
    for job_id, worker in jobs.items():
        found = free.slot_of(job_id)
        assert found is not None
        assert cast(FakeWorker, found[0]) is worker
    assert free._running.keys() == jobs.keys()


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_a_set_that_knows_its_smallest(steps: list[tuple[bool, int]]) -> None:
    lowest, plain = MinSet(), set[int]()
    for adds, number in steps:
        (lowest.add if adds else lowest.discard)(number)
        (plain.add if adds else plain.discard)(number)
        assert lowest.first == min(plain, default=None)
        assert bool(lowest) == bool(plain)
        assert all((each in lowest) == (each in plain) for each in range(10))
