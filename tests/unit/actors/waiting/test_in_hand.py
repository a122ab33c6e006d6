"""What a dispatcher has in hand: it is taken as it comes, held, let go, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from actors.waiting.classes import WaitingJobs
from actors.waiting.in_hand import InHand
from events.decisions import Cancel, Start, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryEntry, MemoryJobQueue
from events.queue import QueueEntry
from events.types import Cancelled
from tests.support.events import submitted
from tests.support.polling import eventually

LEASE_S = 30.0
HOLD_S = 1.0
LANE = 3


class Hand:
    """What one dispatcher after the other has in hand of one queue."""

    def __init__(self) -> None:
        self.queue = MemoryJobQueue(lease_s=LEASE_S)
        self.writer = JobWriter(MemoryLog())
        self.waiting = WaitingJobs(turn_cost=10, runs_some=lambda _: False)
        self.running: set[str] = set()
        self.asked: list[str] = []
        """Of which jobs it was asked whether they run."""

    @asynccontextmanager
    async def open(self, *, most: int = 1000) -> AsyncGenerator[InHand]:
        self.waiting = WaitingJobs(turn_cost=10, runs_some=lambda _: False)
        in_hand = InHand(
            "default",
            queue=self.queue,
            writer=self.writer,
            waiting=self.waiting,
            is_running=self._is_running,
            on_new=lambda: None,
            most=most,
            hold_s=HOLD_S,
        )
        task = asyncio.create_task(in_hand.run())
        try:
            yield in_hand
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _is_running(self, job: Job, _: QueueEntry) -> bool:
        self.asked.append(job.id)
        return job.id in self.running

    async def submit(self, *, lane: int = LANE, **changes: Any) -> str:
        job_id = new_id()
        await self.writer.submit(job_id, Submit(submitted(lane=lane, **changes)))
        await self.queue.add("default", lane, job_id)
        return job_id

    async def cancel(self, job_id: str) -> None:
        await self.writer.execute(Cancel(), await self.job(job_id))

    async def start(self, job_id: str) -> None:
        """As the actor of another dispatcher does."""
        command = Start("another@1", max_attempts=3, max_attempts_total=9, now=utc_now())
        await self.writer.execute(command, await self.job(job_id))

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

    def order(self) -> list[str]:
        """The jobs that wait, in their turns."""
        found: list[str] = []
        while job := next(self.waiting.candidates(1), None):
            self.waiting.take(job)
            found.append(job.job_id)
        return found


@pytest.fixture
def hand() -> Hand:
    return Hand()


async def test_the_jobs_of_one_lane_are_all_in_hand(hand: Hand) -> None:
    backlog = [await hand.submit(owner="crowd") for _ in range(300)]
    single = await hand.submit(owner="single")
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 301)
        order = hand.order()
    assert order.index(single) == 1
    assert [job_id for job_id in order if job_id != single] == backlog


async def test_beyond_the_bound_each_lane_offers_one(hand: Hand) -> None:
    for lane in (1, 1, 1, 1, 2, 2, 3):
        await hand.submit(lane=lane)
    async with hand.open(most=3) as in_hand:
        await eventually(lambda: len(in_hand) >= 3)
        await asyncio.sleep(2 * HOLD_S)
        assert 3 <= len(in_hand) <= 5
        for job_id in hand.order():
            await in_hand.take(job_id).entry.ack()
        await eventually(lambda: len(in_hand) > 1)


async def test_a_full_hand_hears_of_a_job_that_comes_again(hand: Hand) -> None:
    runs = await hand.submit()
    hand.running.add(runs)
    async with hand.queue.reader("default", LANE) as entries:
        [entry] = await entries.next(most=1, timeout_s=1)
    waits = [await hand.submit() for _ in range(3)]
    async with hand.open(most=1) as in_hand:
        await eventually(lambda: in_hand)
        await entry.nak()  # its actor hangs
        await eventually(lambda: runs in hand.asked)
        assert hand.order() == waits[:1]


async def test_what_is_in_hand_is_held_for_as_long_as_its_holder_lives(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await hand.submit() for _ in range(3)]

    async def say_nothing(_: MemoryEntry) -> None: ...

    async with hand.open() as in_hand, hand.queue.reader("default", LANE) as successor:
        await eventually(lambda: len(in_hand) == 3)
        assert await successor.next(most=3, timeout_s=2 * HOLD_S) == []
        monkeypatch.setattr(MemoryEntry, "nak", say_nothing)  # it is killed
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 3, within_s=LEASE_S / 2)
        assert hand.order() == jobs


async def test_a_large_job_is_read_again_and_not_kept(hand: Hand) -> None:
    large = await hand.submit(request={"prompt": "x" * 40_000})
    small = await hand.submit()
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 2)
        held = [in_hand.take(job_id) for job_id in (large, small)]
        assert [each.job is None for each in held] == [True, False]
        job = await in_hand.ready(held[0])
        assert job is not None
        assert job.id == large
        for each in held:
            await each.entry.ack()


async def test_a_job_that_is_cancelled_after_its_actor_went_without_a_word_ends(
    hand: Hand,
) -> None:
    job_id = await hand.submit()
    await hand.start(job_id)
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 1)
        await hand.cancel(job_id)
        assert (await hand.job(job_id)).end is None
        await eventually(lambda: len(in_hand) == 0)
    assert isinstance((await hand.job(job_id)).end, Cancelled)


async def test_what_is_in_hand_is_given_back_at_the_end(hand: Hand) -> None:
    jobs = [await hand.submit() for _ in range(3)]
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 3)
        in_hand.take(jobs[0])
    async with hand.queue.reader("default", LANE) as successor:
        entries = await successor.next(most=3, timeout_s=1)
    assert [entry.job_id for entry in entries] == jobs[1:]


async def test_what_is_just_read_is_given_back_at_the_end(hand: Hand) -> None:
    jobs = [await hand.submit() for _ in range(3)]
    is_asked = asyncio.Event()

    async def wait(_: str) -> Job | None:
        is_asked.set()
        return await asyncio.get_running_loop().create_future()

    hand.writer.load = wait  # type: ignore[method-assign]
    async with hand.open():
        await is_asked.wait()
    async with hand.queue.reader("default", LANE) as successor:
        entries = await successor.next(most=3, timeout_s=1)
    assert [entry.job_id for entry in entries] == jobs


async def test_one_that_is_taken_has_a_full_lease(hand: Hand) -> None:
    job_id = await hand.submit()
    async with hand.open() as in_hand, hand.queue.reader("default", LANE) as successor:
        await eventually(lambda: in_hand)
        await asyncio.sleep(HOLD_S)
        job = await in_hand.ready(in_hand.take(job_id))
        assert (job is not None and job.id, len(in_hand)) == (job_id, 0)
        assert await successor.next(most=1, timeout_s=2 * HOLD_S) == []


async def test_one_that_ended_meanwhile_leaves_the_queue(hand: Hand) -> None:
    waits, taken = await hand.submit(), await hand.submit()
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 2)
        await asyncio.sleep(HOLD_S)
        held = in_hand.take(taken)
        await hand.cancel(taken)
        assert await in_hand.ready(held) is None
        await hand.cancel(waits)
        await eventually(lambda: not in_hand)
    assert await hand.queue.job_ids() == set()
    assert len(hand.waiting) == 1  # the one that was taken


async def test_one_that_another_has_started_is_left_to_it(hand: Hand) -> None:
    waits, taken = await hand.submit(), await hand.submit()
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 2)
        await asyncio.sleep(HOLD_S)
        held = in_hand.take(taken)
        await hand.start(taken)
        assert await in_hand.ready(held) is None
        entry = in_hand._held[waits].entry
        await hand.start(waits)
        while in_hand:
            await entry.renew()
            await asyncio.sleep(0.05)
        await entry.nak()  # its actor is gone
        await eventually(lambda: in_hand)
        job = await in_hand.ready(in_hand.take(waits))
        assert job is not None
        assert job.attempts == 1
    assert await hand.queue.job_ids() == {waits, taken}


async def test_one_that_comes_again_keeps_its_place(hand: Hand) -> None:
    jobs = [await hand.submit() for _ in range(3)]
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 3)
        held = in_hand._held[jobs[1]]
        before = held.entry
        await before.nak()
        await eventually(lambda: held.entry is not before)
        assert hand.order() == jobs


async def test_one_that_has_failed_once_is_the_first_of_its_owner(hand: Hand) -> None:
    first, again = await hand.submit(), await hand.submit()
    await hand.start(again)
    async with hand.open() as in_hand:
        await eventually(lambda: len(in_hand) == 2)
        assert hand.order() == [again, first]
