"""Callbacks before the end of a job, on machines and receivers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actors.callbacks.deliverer import DeliveryLimits
from events.bus.queues import AT_ONCE, QueueEntry
from events.decisions import Command, Complete, Erase, Start, StoreImage, Submit
from events.delivery import SendResult
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.types import CallbackAttempted
from tests.support.callbacks.bench import Bench, RecordingSender
from tests.support.events import image, submitted
from tests.support.memory.queues import MemoryCallbackQueue, MemoryEntries
from tests.support.patience import FACTOR
from tests.support.polling import eventually

URL = "http://127.0.0.1/hook"
START = Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())
FAILED = SendResult(latency_s=0.1, status=500)
GONE = SendResult(latency_s=0.1, status=410)
SLOW = DeliveryLimits(delays_s=(0, 3600), jitter=0, before_end_s=0.5)
"""The pause after a try is an hour."""
IMAGES = [StoreImage("a", image(index)) for index in range(3)]
END = Complete("a", images=3)
WHOLE = ["_started", "_image-0", "_image-1", "_image-2", ""]


class Job:
    """A job of which its caller is told as it runs, and what the router makes of its events."""

    def __init__(self, bench: Bench, *asked: str) -> None:
        self.id = new_id()
        self._bench = bench
        self._writer = JobWriter(bench.jobs)
        self._asked = asked or ("started", "image")

    async def submit(self) -> None:
        data = submitted(callback_url=URL, callback_events=self._asked, images=3)
        await self._writer.submit(self.id, Submit(data))

    async def goes_on(self, *commands: Command) -> None:
        for command in commands:
            job = await self._writer.load(self.id)
            assert job is not None
            await self._writer.execute(command, job)
            await self._bench.queue.park(self.id, AT_ONCE)

    def told(self) -> list[str]:
        ids = [id for id in self._bench.sender.told if id.startswith(f"msg_{self.id}")]
        return [id.removeprefix(f"msg_{self.id}") for id in ids]


async def job_of(bench: Bench, *commands: Command, asked: tuple[str, ...] = ()) -> Job:
    job = Job(bench, *asked)
    await job.submit()
    await job.goes_on(*commands)
    return job


async def test_a_job_is_told_of_as_it_runs(bench: Bench) -> None:
    bench.sender.outcomes = [FAILED]
    job = await job_of(bench)
    async with bench.running():
        for count, command in enumerate((START, *IMAGES, END), start=2):
            await job.goes_on(command)
            await eventually(lambda count=count: len(job.told()) == count)  # type: ignore[misc]
        await eventually(lambda: bench.is_delivered(job.id))
    assert job.told() == ["_started", *WHOLE]
    assert [each["event"] for each in bench.sender.bodies] == [
        *["started"] * 2,
        *["image"] * 3,
        "completed",
    ]


async def test_a_later_one_waits_for_the_one_before_whose_tries_have_one_body(
    bench: Bench,
) -> None:
    bench.sender.outcomes = [FAILED, FAILED]
    job = await job_of(bench, START)
    async with bench.running():
        await eventually(lambda: len(job.told()) == 1)
        await job.goes_on(*IMAGES)
        await eventually(lambda: len(job.told()) >= 2)
        assert set(job.told()) == {"_started"}
    assert bench.sender.bodies[0] == bench.sender.bodies[1]


async def test_one_that_is_given_up_makes_room_for_the_next(bench: Bench) -> None:
    bench.sender.outcomes = [GONE]
    job = await job_of(bench, START, *IMAGES, END)
    await bench.deliver(job.id)
    assert job.told() == WHOLE
    first, *_ = await bench.deliveries.read(job.id)
    assert isinstance(first.data, CallbackAttempted)
    assert (first.data.about, first.data.is_last, first.data.status) == ("started", True, 410)


async def test_a_receiver_that_is_down_holds_up_the_end_for_so_long_at_most(bench: Bench) -> None:
    bench.limits = SLOW
    bench.sender.outcomes = [FAILED]
    job = await job_of(bench, START)
    async with bench.running():
        await eventually(lambda: bench.attempts(job.id))  # the next one in an hour
        await job.goes_on(*IMAGES, END)
        await eventually(lambda: bench.is_delivered(job.id))
    assert job.told() == ["_started", ""]


class RacingQueue(MemoryCallbackQueue):
    """The job ends just before one of its pauses is parked, in the place of that end."""

    def __init__(self, pause: int) -> None:
        super().__init__()
        self._pauses_left = pause
        self.job: Job | None = None

    async def park(self, key: str, until: datetime, *, receiver: str | None = None) -> None:
        if until > utc_now() + timedelta(minutes=1):
            self._pauses_left -= 1
            if not self._pauses_left:
                assert self.job is not None
                await self.job.goes_on(END)
        await super().park(key, until, receiver=receiver)


@pytest.mark.parametrize("pause", [1, 2], ids=["after a try", "after another event"])
async def test_an_end_that_comes_meanwhile_is_not_forgotten(pause: int) -> None:
    queue = RacingQueue(pause)
    bench = Bench(queue)
    bench.limits = SLOW
    bench.sender.outcomes = [FAILED]
    queue.job = job = await job_of(bench, START)
    async with bench.running():
        await eventually(lambda: bench.attempts(job.id))
        if pause > 1:
            await job.goes_on(IMAGES[0])
        await eventually(lambda: bench.is_delivered(job.id))
    assert job.told() == ["_started", ""]


async def test_an_image_that_comes_while_another_is_told_is_told_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = asyncio.Event()
    take = MemoryEntries.next

    async def watched(entries: MemoryEntries, **options: Any) -> Sequence[QueueEntry]:
        found = await take(entries, **options)
        if found:
            taken.set()
        return found

    class Slow(RecordingSender):
        async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
            if len(self.sent) == 1:
                taken.clear()
                await job.goes_on(*IMAGES[1:])
                async with asyncio.timeout(5 * FACTOR):
                    await taken.wait()  # the second entry, while the first is handled
            return await super().send(url, body, headers)

    monkeypatch.setattr(MemoryEntries, "next", watched)
    bench.sender = Slow()
    job = await job_of(bench, START, IMAGES[0])
    async with bench.running():
        await eventually(lambda: len(job.told()) == 4)
    assert job.told() == WHOLE[:4]


async def test_a_role_that_dies_after_a_try_tells_it_again_and_goes_on(bench: Bench) -> None:
    job = await job_of(bench, START, *IMAGES, END)
    bench.deliveries.append_error = LogUnavailable()  # between the answer and its record
    async with bench.running():
        await eventually(lambda: len(job.told()) == 1)
    bench.deliveries.recover()
    bench.registry = CollectorRegistry()  # of another process
    await bench.deliver(job.id)
    assert job.told() == ["_started", *WHOLE]


async def test_of_an_erased_job_nothing_is_sent(bench: Bench) -> None:
    job = await job_of(bench, START, *IMAGES, Erase())
    async with bench.others_are_sent():
        await eventually(bench.nothing_is_due)
    assert job.told() == []


async def test_one_that_cannot_be_made_holds_up_no_other(bench: Bench) -> None:
    class Hostile(RecordingSender):
        async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
            if headers["webhook-id"].endswith("_image-1"):
                raise TypeError("nobody foresaw this")
            return await super().send(url, body, headers)

    bench.sender = Hostile()
    job = await job_of(bench, START, *IMAGES, END)
    await bench.deliver(job.id)
    assert job.told() == ["_started", "_image-0", "_image-2", ""]


async def test_what_happened_while_nobody_called_is_told_in_order_and_once_though_entries_repeat(
    bench: Bench,
) -> None:
    job = await job_of(bench, START, *IMAGES, END)
    async with bench.running():
        await eventually(lambda: bench.is_delivered(job.id))
        for _ in range(3):
            await bench.queue.park(job.id, AT_ONCE)
            await eventually(bench.nothing_is_due)
    assert job.told() == WHOLE
