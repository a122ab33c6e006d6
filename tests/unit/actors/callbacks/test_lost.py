"""The repair of the callback queue: over many rounds, processes and gaps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path

import pytest

from actors.callbacks.lost import LostCallbacks
from events.errors import SegmentBroken
from events.ids import new_id
from events.job import fold
from events.memory.queues import MemoryCallbackQueue
from events.store.database import Database
from events.store.read_model import ReadModel
from events.types import (
    CallbackDelivered,
    Completed,
    DeliveryEvent,
    Erased,
    Event,
    Flavour,
    RedeliveryRequested,
)
from events.wire.callback_keys import callback_key
from storage.images import ImageNotFound
from tests.support.database import database_in
from tests.support.events import MORNING, History, submitted
from tests.support.failing_log import FailingLog

ADDRESS = "http://example.com/done"


class AskedForMeanwhile(MemoryCallbackQueue):
    """Everything is on the queue from the second look on."""

    looks = 0

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        self.looks += 1
        return set(job_ids) if self.looks > 1 else set()


class Bench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.read_model = ReadModel(database)
        self.deliveries = FailingLog()
        self.queue = MemoryCallbackQueue()
        self.history = History()

    def repair(self, *, batch: int = 100) -> LostCallbacks:
        """As a new process has it."""
        return LostCallbacks(
            queue=self.queue,
            unsettled=ReadModel(self.database).unsettled,
            deliveries=self.deliveries,
            period_s=60,
            batch=batch,
        )

    def ended(self, *, callback_url: str | None = ADDRESS) -> str:
        """A job whose end is in the log, and not in the database yet."""
        job_id = new_id()
        self.history.add(job_id, submitted(callback_url=callback_url), Completed(images=0))
        return job_id

    async def project(self) -> None:
        at = await self.read_model.checkpoint()
        events = [event for event in self.history.events if event.position > at]
        assert await self.read_model.apply(events, expected=at)

    async def record(self, job_id: str, *events: DeliveryEvent) -> None:
        history = await self.deliveries.read(job_id)
        for version, data in enumerate(events, len(history) + 1):
            time = MORNING + timedelta(hours=version)
            event = Event(id=new_id(), job_id=job_id, version=version, time=time, data=data)
            last = await self.deliveries.last(job_id)
            await self.deliveries.append(event, expected=last.position if last else 0)

    async def unsettled(self) -> list[str]:
        return [job.id for job in await self.read_model.unsettled.page(after=0, limit=1000)]

    async def lose_all(self) -> None:
        async with self.queue.due(most_held=1000, hold_s=60) as due:
            for entry in await due.next(most=1000, timeout_s=0):
                await entry.ack()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(database)


async def test_a_round_looks_at_so_many_and_a_new_process_goes_on_from_there(bench: Bench) -> None:
    lost = [bench.ended() for _ in range(5)]
    await bench.project()
    counts = [await bench.repair(batch=2).put_back() for _ in range(3)]
    assert counts == [2, 2, 1]
    assert await bench.queue.job_ids() == set(lost)
    await bench.lose_all()
    assert await bench.repair(batch=2).put_back() == 2, "it begins again at the first"


async def test_what_was_lost_is_put_back_in_the_part_of_its_receiver(bench: Bench) -> None:
    job_id = bench.ended()
    await bench.project()
    assert await bench.repair().put_back() == 1
    async with bench.queue.due(most_held=9, hold_s=60) as due:
        [entry] = await due.next(most=9, timeout_s=0)
    assert entry.key == callback_key(job_id, submitted(callback_url=ADDRESS))


async def test_a_page_is_no_end(bench: Bench) -> None:
    lost = {bench.ended() for _ in range(501)}
    await bench.project()
    assert await bench.repair(batch=1000).put_back() == 501
    assert await bench.queue.job_ids() == lost


async def test_an_erasure_ahead_of_the_projection_hides_nobody(bench: Bench) -> None:
    repair = bench.repair()
    bench.ended()
    await bench.project()
    late, erased_id = bench.ended(), bench.ended()
    [erasure] = bench.history.add(
        erased_id,
        Erased(flavour=Flavour.DIFFUSION, owner="a", endpoint="default", submitted_at=MORNING),
    )
    erased = fold([erasure])
    assert erased is not None
    await bench.read_model.erase(erased)
    assert await repair.put_back() == 1
    await bench.project()
    assert await repair.put_back() == 1
    assert late in await bench.queue.job_ids()
    assert erased_id not in await bench.queue.job_ids()


async def test_what_comes_behind_the_place_is_found_on_the_next_way(bench: Bench) -> None:
    early, *others = (bench.ended() for _ in range(4))
    await bench.project()
    await bench.read_model.unsettled.settle({early: MORNING})
    assert await bench.repair(batch=2).put_back() == 2
    await bench.read_model.unsettled.reopen(early)
    assert await bench.repair(batch=2).put_back() == 1
    assert await bench.repair(batch=2).put_back() == 1
    assert await bench.queue.job_ids() == {early, *others}


async def test_a_delivery_that_has_ended_is_settled_and_read_no_more(bench: Bench) -> None:
    ended, opened = bench.ended(), bench.ended()
    await bench.project()
    await bench.record(ended, CallbackDelivered(attempt=1))
    await bench.record(opened, CallbackDelivered(attempt=1), RedeliveryRequested())
    assert await bench.repair().put_back() == 1
    assert await bench.unsettled() == [opened]
    bench.deliveries.unreadable.add(ended)
    assert await bench.repair().put_back() == 0


async def test_a_job_that_wants_no_callback_is_settled_from_its_end_on(bench: Bench) -> None:
    bench.ended(callback_url=None)
    await bench.project()
    assert await bench.unsettled() == []


async def test_jobs_of_an_older_version_are_settled_and_theirs_that_are_open_found(
    bench: Bench,
) -> None:
    silent, opened = bench.ended(callback_url=None), bench.ended()
    await bench.project()
    await bench.read_model.unsettled.reopen(silent)  # as a column that was added later reads
    assert await bench.unsettled() == [silent, opened]
    assert await bench.repair().put_back() == 1
    assert await bench.unsettled() == [opened]


async def test_a_redelivery_while_it_is_looked_at_leaves_it_unsettled(bench: Bench) -> None:
    job_id = bench.ended()
    await bench.project()
    await bench.record(job_id, CallbackDelivered(attempt=1))

    bench.queue = AskedForMeanwhile()
    assert await bench.repair().put_back() == 0
    assert await bench.unsettled() == [job_id]


class WithBrokenSegments(FailingLog):
    """As the log and the archive together."""

    broken = ""
    error: Exception = SegmentBroken()

    async def read(self, job_id: str) -> list[Event]:
        if job_id == self.broken:
            raise self.error
        return await super().read(job_id)


@pytest.mark.parametrize("error", [SegmentBroken(), ImageNotFound()])
async def test_one_whose_segment_is_broken_or_gone_stops_no_other(
    bench: Bench, error: Exception
) -> None:
    bench.deliveries = deliveries = WithBrokenSegments()
    deliveries.broken, lost = bench.ended(), bench.ended()
    deliveries.error = error
    await bench.project()
    assert await bench.repair().put_back() == 1
    assert await bench.queue.job_ids() == {lost}
    assert await bench.unsettled() == [deliveries.broken, lost]


async def test_one_that_cannot_be_read_stops_no_other(bench: Bench) -> None:
    unreadable, lost = bench.ended(), bench.ended()
    await bench.project()
    bench.deliveries.unreadable.add(unreadable)
    assert await bench.repair().put_back() == 1
    assert await bench.queue.job_ids() == {lost}
    assert await bench.unsettled() == [unreadable, lost]
