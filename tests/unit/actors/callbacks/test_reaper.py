"""The repair of the callback queue: over many rounds, processes and gaps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path

import pytest

from actors.callbacks.reaper import CallbackReaper
from events.errors import HistoryBroken
from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
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
from storage.images import ImageNotFound, ImageStoreUnavailable
from tests.support.database import database_in
from tests.support.events import MORNING, History, submitted
from tests.support.failing_log import FailingLog
from tests.support.memory.queues import MemoryCallbackQueue

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

    def repair(self, *, batch: int = 100) -> CallbackReaper:
        """As a new process has it."""
        return CallbackReaper(
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
        at = await self.read_model.offset()
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
        async with self.queue.due(max_unacknowledged=1000, ack_wait_s=60) as due:
            for entry in await due.next(most=1000, timeout_s=0):
                await entry.ack()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(database)


async def test_a_round_looks_at_so_many_and_a_new_process_goes_on_from_there(bench: Bench) -> None:
    lost = [bench.ended() for _ in range(5)]
    await bench.project()
    counts = [await bench.repair(batch=2).requeue_round() for _ in range(3)]
    assert counts == [2, 2, 1]
    assert await bench.queue.job_ids() == set(lost)
    await bench.lose_all()
    assert await bench.repair(batch=2).requeue_round() == 2, "it begins again at the first"


async def test_a_page_is_no_end(bench: Bench) -> None:
    lost = {bench.ended() for _ in range(501)}
    await bench.project()
    assert await bench.repair(batch=1000).requeue_round() == 501
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
    assert await repair.requeue_round() == 1
    await bench.project()
    assert await repair.requeue_round() == 1
    assert late in await bench.queue.job_ids()
    assert erased_id not in await bench.queue.job_ids()


async def test_what_comes_behind_the_place_is_found_on_the_next_way(bench: Bench) -> None:
    early, *others = (bench.ended() for _ in range(4))
    await bench.project()
    [first] = await bench.read_model.unsettled.page(after=0, limit=1)
    await bench.read_model.unsettled.settle({first: MORNING})
    assert await bench.repair(batch=2).requeue_round() == 2
    await bench.read_model.unsettled.reopen(early)
    assert await bench.repair(batch=2).requeue_round() == 1
    assert await bench.repair(batch=2).requeue_round() == 1
    assert await bench.queue.job_ids() == {early, *others}


async def test_a_delivery_that_has_ended_is_settled_and_read_no_more(bench: Bench) -> None:
    ended, opened = bench.ended(), bench.ended()
    await bench.project()
    await bench.record(ended, CallbackDelivered(attempt=1))
    await bench.record(opened, CallbackDelivered(attempt=1), RedeliveryRequested())
    assert await bench.repair().requeue_round() == 1
    assert await bench.unsettled() == [opened]
    bench.deliveries.unreadable.add(ended)
    assert await bench.repair().requeue_round() == 0


async def test_jobs_of_an_older_version_are_settled_and_theirs_that_are_open_found(
    bench: Bench,
) -> None:
    silent, opened = bench.ended(callback_url=None), bench.ended()
    await bench.project()
    await bench.read_model.unsettled.reopen(silent)  # as a column that was added later reads
    assert await bench.unsettled() == [silent, opened]
    assert await bench.repair().requeue_round() == 1
    assert await bench.unsettled() == [opened]


async def test_a_redelivery_while_it_is_looked_at_leaves_it_unsettled(bench: Bench) -> None:
    job_id = bench.ended()
    await bench.project()
    await bench.record(job_id, CallbackDelivered(attempt=1))

    bench.queue = AskedForMeanwhile()
    assert await bench.repair().requeue_round() == 0
    assert await bench.unsettled() == [job_id]


class AskedForDuringRead(FailingLog):
    """A redelivery is requested after the delivery was read, and the API dies before it parks."""

    def __init__(self, ended_jobs: EndedJobs) -> None:
        super().__init__()
        self._ended_jobs = ended_jobs
        self.is_asked_for = False

    async def read(self, job_id: str) -> list[Event]:
        events = await super().read(job_id)
        if self.is_asked_for:
            self.is_asked_for = False
            await self._ended_jobs.restart_hot_time(job_id, MORNING + timedelta(days=1))
        return events


async def test_a_redelivery_that_was_never_parked_is_found(bench: Bench) -> None:
    bench.deliveries = deliveries = AskedForDuringRead(EndedJobs(bench.database))
    job_id = bench.ended()
    await bench.project()
    await bench.record(job_id, CallbackDelivered(attempt=1))
    deliveries.is_asked_for = True
    assert await bench.repair().requeue_round() == 0
    assert await bench.unsettled() == [job_id]
    await bench.record(job_id, CallbackDelivered(attempt=1), RedeliveryRequested())
    assert await bench.repair().requeue_round() == 1
    assert await bench.queue.job_ids() == {job_id}


class WithBrokenHistories(FailingLog):
    """A log joined with history objects."""

    broken = ""
    error: Exception | None = None

    async def read(self, job_id: str) -> list[Event]:
        if job_id == self.broken and self.error is not None:
            raise self.error
        return await super().read(job_id)


@pytest.mark.parametrize(
    "error", [HistoryBroken(), ImageNotFound(), ImageStoreUnavailable("EIO"), None]
)
async def test_one_that_cannot_be_read_stops_no_other(
    bench: Bench, error: Exception | None
) -> None:
    bench.deliveries = deliveries = WithBrokenHistories()
    deliveries.broken, lost = bench.ended(), bench.ended()
    deliveries.error = error
    if error is None:
        deliveries.unreadable.add(deliveries.broken)
    await bench.project()
    assert await bench.repair().requeue_round() == 1
    assert await bench.queue.job_ids() == {lost}
    assert await bench.unsettled() == [deliveries.broken, lost]


async def test_a_round_of_which_nothing_can_be_read_fails_and_the_next_goes_on(
    bench: Bench,
) -> None:
    bench.deliveries = deliveries = WithBrokenHistories()
    deliveries.broken, lost = bench.ended(), bench.ended()
    deliveries.error = ImageStoreUnavailable("EIO")
    await bench.project()
    repair = bench.repair(batch=1)
    with pytest.raises(ImageStoreUnavailable):
        await repair.requeue_round()
    assert await repair.requeue_round() == 1
    assert await bench.queue.job_ids() == {lost}
    deliveries.error = None
    counts = [await bench.repair().requeue_round() for _ in range(2)]
    assert counts == [0, 1], "it begins again at the first"
    assert await bench.queue.job_ids() == {deliveries.broken, lost}
