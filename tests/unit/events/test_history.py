"""A job's history is one, whether its events are in the log, in its object, or in both."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from events.decisions import Cancel, Erase, Submit
from events.delivery import RequestRedelivery
from events.errors import DatabaseUnavailable, HistoryBroken, HistoryGone
from events.history import History, StoredHistory, decode_history, encode_history, write_history
from events.ids import new_id
from events.job import Job
from events.log import Conflict, DeliveryWriter, JobWriter, StoredEvent, utc_now
from events.types import CallbackDelivered, Cancelled, Event
from storage.file_names import HistoryName
from storage.images import ImageNotFound, ImageStore
from tests.support.events import submitted
from tests.support.memory.log import MemoryLog


class Logs:
    """A log of jobs and one of deliveries, and a job that a test moves to an object."""

    def __init__(self, folder: Path) -> None:
        self.log, self.delivery_log = MemoryLog(), MemoryLog()
        self.images = ImageStore(folder.as_uri())
        self.keys: list[str] = []
        """The keys that the next look-ups find; the last one stays."""
        self.history = History(
            log=self.log, deliveries=self.delivery_log, images=self.images, find=self._find
        )
        self.writer = JobWriter(self.history.log)
        self.delivery_writer = DeliveryWriter(self.history.delivery_log)

    async def _find(self, job_id: str) -> str | None:
        if not self.keys:
            return None
        return self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]

    async def ended_job(self) -> Job:
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted()))
        assert outcome.job is not None
        outcome = await self.writer.execute(Cancel(), outcome.job)
        delivered = CallbackDelivered(attempt=1)
        event = Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=delivered)
        await self.delivery_log.append(event, expected=0)
        assert outcome.job is not None
        return outcome.job

    async def move(self, job: Job, *, purges: bool = True) -> None:
        events = (await self.log.read_raw([job.id]))[job.id]
        deliveries = (await self.delivery_log.read_raw([job.id]))[job.id]
        self.keys = [HistoryName(job.id, len(events), len(deliveries)).key]
        history = StoredHistory(job.id, events, deliveries)
        await write_history(self.images, self.keys[0], history)
        if purges:
            await self.log.purge(job.id)
            await self.delivery_log.purge(job.id)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.fixture
async def moved(logs: Logs) -> Job:
    """A job that left the log."""
    job = await logs.ended_job()
    await logs.move(job)
    return job


@pytest.mark.parametrize("purges", [False, True])
async def test_a_job_that_left_the_log_reads_as_before(logs: Logs, *, purges: bool) -> None:
    job = await logs.ended_job()
    before = await logs.history.read(job.id), await logs.history.deliveries(job.id)
    await logs.move(job, purges=purges)
    assert (await logs.history.read(job.id), await logs.history.deliveries(job.id)) == before
    assert await logs.writer.load(job.id) == job


async def test_a_job_in_the_log_needs_no_look_up(logs: Logs) -> None:
    job = await logs.ended_job()

    async def find(job_id: str) -> str | None:
        raise DatabaseUnavailable

    history = History(log=logs.log, deliveries=logs.delivery_log, images=logs.images, find=find)
    assert len(await history.read(job.id)) == 2
    with pytest.raises(DatabaseUnavailable):
        await history.read(new_id())


async def test_later_events_are_joined(logs: Logs, moved: Job) -> None:
    delivery = await logs.delivery_writer.load(moved.id)
    await logs.delivery_writer.execute(RequestRedelivery(), moved, delivery)
    assert [event.version for event in await logs.history.deliveries(moved.id)] == [1, 2]
    assert not (await logs.delivery_writer.load(moved.id)).ended


async def test_a_job_that_left_the_log_is_erased_on_it(logs: Logs, moved: Job) -> None:
    erased = (await logs.writer.execute(Erase(), moved)).job
    assert erased is not None
    assert erased.erased
    assert await logs.writer.load(moved.id) == erased
    assert (await logs.writer.execute(Erase(), moved)).job == erased


async def test_a_writer_whose_job_is_nowhere_is_refused(logs: Logs) -> None:
    job = await logs.ended_job()
    await logs.log.purge(job.id)
    event = Event(id=new_id(), job_id=job.id, version=3, time=utc_now(), data=Cancelled())
    with pytest.raises(HistoryGone):
        await logs.history.log.append(event, expected=job.position)


async def test_one_of_two_writers_on_a_job_that_left_the_log_wins(logs: Logs, moved: Job) -> None:
    for lost in (False, True):
        event = Event(id=new_id(), job_id=moved.id, version=3, time=utc_now(), data=Cancelled())
        outcome = await logs.history.log.append(event, expected=moved.position)
        assert isinstance(outcome, Conflict) is lost


async def test_a_late_writer_of_a_job_that_left_the_log_gets_the_later_events(logs: Logs) -> None:
    job = await logs.ended_job()
    delivery = await logs.delivery_writer.load(job.id)
    await logs.delivery_writer.execute(RequestRedelivery(), job, delivery)
    [first, second] = await logs.history.deliveries(job.id)
    await logs.move(job)
    late = Event(id=new_id(), job_id=job.id, version=2, time=utc_now(), data=first.data)
    outcome = await logs.history.delivery_log.append(late, expected=first.position)
    assert outcome == Conflict((second,))
    assert await logs.history.deliveries(job.id) == [first, second]


async def test_a_job_whose_object_is_damaged_can_be_erased(logs: Logs, moved: Job) -> None:
    await logs.images.put(logs.keys[0], b"damaged")
    erased = (await logs.writer.execute(Erase(), moved)).job
    assert erased is not None
    assert await logs.history.read(moved.id) == await logs.log.read(moved.id)


async def test_an_object_of_another_job_is_an_error(logs: Logs, moved: Job) -> None:
    await write_history(logs.images, logs.keys[0], StoredHistory(new_id()))
    with pytest.raises(HistoryBroken, match="another job"):
        await logs.history.read(moved.id)


async def test_an_object_that_was_replaced_meanwhile_is_looked_up_again(
    logs: Logs, moved: Job
) -> None:
    gone = HistoryName(moved.id, 1, 0).key
    logs.keys = [gone, gone, *logs.keys]
    assert len(await logs.history.read(moved.id)) == 2


async def test_an_object_that_is_lost_or_damaged_is_an_error(logs: Logs, moved: Job) -> None:
    await logs.images.put(logs.keys[0], b"damaged")
    with pytest.raises(HistoryBroken, match=moved.id):
        await logs.history.read(moved.id)
    await logs.images.delete(logs.keys[0])
    with pytest.raises(ImageNotFound):
        await logs.history.read(moved.id)


# The format of an object.

HISTORY = StoredHistory(
    "job",
    (StoredEvent(3, b'{"id":"a","data":{"text":"\\u00e9 } {"}}'), StoredEvent(9, b'{"id": "b"}')),
    (StoredEvent(4, '{"id":"ü"}'.encode()),),
)


@pytest.mark.parametrize("history", [HISTORY, StoredHistory("job"), StoredHistory("job", (), ())])
def test_what_is_read_is_what_was_written_byte_for_byte(history: StoredHistory) -> None:
    assert decode_history(encode_history(history)) == history
    assert encode_history(history) == encode_history(decode_history(encode_history(history)))


def test_zcat_shows_lines_of_json() -> None:
    head, *lines = gzip.decompress(encode_history(HISTORY)).decode().splitlines()
    assert json.loads(head) == {"format": "darkroom.history.v1", "job": "job"}
    shown = [json.loads(line) for line in lines]
    places = [(each["log"], each["sequence"]) for each in shown]
    assert places == [("jobs", 3), ("jobs", 9), ("deliveries", 4)]
    assert shown[1]["event"] == {"id": "b"}


def test_an_event_of_two_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        encode_history(StoredHistory("job", (StoredEvent(1, b"{\n}"),)))


def test_any_damage_is_noticed() -> None:
    data = encode_history(HISTORY)
    for at in range(10, len(data)):
        with pytest.raises(HistoryBroken):
            decode_history(data[:at])
        with pytest.raises(HistoryBroken):
            decode_history(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}\n",
        b'{"format":"darkroom.history.v2","job":"job"}\n',
        b'{"format":"darkroom.history.v1"}\n',
        b'{"format":"darkroom.history.v1","job":"job"}\nno event\n',
        b'{"format":"darkroom.history.v1","job":"job"}\n{"log":"jobs","sequence":1,"event":{}}',
        b"[]\n",
    ],
)
def test_a_file_that_is_no_history_is_refused(text: bytes) -> None:
    with pytest.raises(HistoryBroken):
        decode_history(gzip.compress(text))


def test_a_join_has_each_event_once_and_the_later_ones_last() -> None:
    """Sequences begin again where a log was lost, so they tell no event from another."""
    again = StoredEvent(1, b'{"id":"c"}')
    later = StoredHistory("job", (HISTORY.events[1], again), (HISTORY.deliveries[0],))
    assert HISTORY.joined(later) == StoredHistory(
        "job", (*HISTORY.events, again), HISTORY.deliveries
    )
    assert HISTORY.joined(StoredHistory("job")) == HISTORY
    assert StoredHistory("job").joined(HISTORY) == HISTORY
