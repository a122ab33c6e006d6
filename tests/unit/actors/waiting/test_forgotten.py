"""Entries that nobody is delivered any more, with a clock that only a test moves."""

from __future__ import annotations

import math

import pytest

from actors.waiting.forgotten import Forgotten
from events.decisions import Command, FailAttempt, Start, Submit
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from tests.support.events import submitted

ACTOR = "actor"
PATIENCE_S = 90.0


class Bench:
    def __init__(self) -> None:
        self.time = 0.0
        self.queue = MemoryJobQueue()
        self.writer = JobWriter(MemoryLog())
        self.known: set[str] = set()
        self.takes_all = True
        self.forgotten = Forgotten(
            "default",
            queue=self.queue,
            writer=self.writer,
            is_known=lambda job_id: job_id in self.known,
            takes_all=lambda: self.takes_all,
            patience_s=PATIENCE_S,
            clock=lambda: self.time,
        )

    async def submit(self) -> str:
        """A job whose entry is held for good by nobody."""
        job_id = new_id()
        await self.writer.submit(job_id, Submit(submitted()))
        await self.queue.add("default", 3, job_id)
        async with self.queue.reader("default", 3) as entries:
            [entry] = await entries.next(most=1, timeout_s=1)
            await entry.hold(for_s=math.inf)
        return job_id

    async def start(self, job_id: str) -> None:
        await self.write(job_id, Start(ACTOR, max_attempts=3, max_attempts_total=9, now=utc_now()))

    async def write(self, job_id: str, command: Command) -> None:
        job = await self.writer.load(job_id)
        assert job is not None
        await self.writer.execute(command, job)

    async def look_after(self, seconds: float) -> None:
        self.time += seconds
        await self.forgotten.look()

    async def delivered(self) -> list[str]:
        async with self.queue.reader("default", 3) as entries:
            return [entry.job_id for entry in await entries.next(most=9, timeout_s=0)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_an_entry_of_nobody_comes_again_after_some_time(bench: Bench) -> None:
    job_id = await bench.submit()
    await bench.look_after(0)
    await bench.look_after(PATIENCE_S - 1)
    assert await bench.delivered() == []
    await bench.look_after(1)
    assert await bench.delivered() == [job_id]
    await bench.look_after(PATIENCE_S - 1)
    assert await bench.delivered() == []  # its time begins anew


async def test_one_whose_attempt_failed_comes_again(bench: Bench) -> None:
    job_id = await bench.submit()
    await bench.start(job_id)
    await bench.write(job_id, FailAttempt(ACTOR, "The engine died.", final=False))
    await bench.look_after(0)
    await bench.look_after(PATIENCE_S)
    assert await bench.delivered() == [job_id]


async def test_one_in_hand_or_on_a_worker_meanwhile_is_left(bench: Bench) -> None:
    job_id = await bench.submit()
    await bench.look_after(0)
    bench.known.add(job_id)
    await bench.look_after(PATIENCE_S / 2)
    bench.known.clear()
    await bench.look_after(PATIENCE_S / 2)
    assert await bench.delivered() == []


async def test_one_that_an_actor_runs_is_left(bench: Bench) -> None:
    """Of a worker that is not this dispatcher's any more."""
    await bench.start(await bench.submit())
    await bench.look_after(0)
    await bench.look_after(PATIENCE_S)
    assert await bench.delivered() == []


async def test_that_of_a_job_which_has_ended_is_removed(bench: Bench) -> None:
    await bench.queue.add("default", 3, new_id())
    await bench.look_after(0)
    await bench.look_after(PATIENCE_S)
    assert await bench.queue.job_ids() == set()


async def test_a_backlog_that_is_not_in_hand_is_left(bench: Bench) -> None:
    await bench.submit()
    await bench.look_after(0)
    bench.takes_all = False
    await bench.look_after(PATIENCE_S)
    bench.takes_all = True
    await bench.look_after(PATIENCE_S - 1)
    assert await bench.delivered() == []


async def test_an_outage_forgets_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await bench.submit()
    await bench.look_after(0)

    async def away(*_: object, **__: object) -> None:
        raise LogUnavailable

    with monkeypatch.context() as outage:
        outage.setattr(bench.queue, "put_again", away)
        with pytest.raises(LogUnavailable):
            await bench.look_after(PATIENCE_S)
    await bench.look_after(0)
    assert await bench.delivered() == [job_id]
