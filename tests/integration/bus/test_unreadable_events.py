"""What stands in the log and cannot be read: every door of the log hands it out as its job's."""

from __future__ import annotations

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.streams import job_subject
from events.ids import new_id
from events.types import Broken, CancelRequested, Event, Submitted
from tests.support.events import appended, new_event


async def test_what_cannot_be_read_keeps_its_place_in_the_history(bus: Bus) -> None:
    log, job_id = JetStreamLog(bus), new_id()
    async with log.watch(job_id) as subscription:
        await appended(log, new_event(job_id))
        at = await bus.store(job_subject(job_id), b'{"cut": "off', timeout_s=5)
        last = await log.last(job_id)
        assert last is not None
        assert isinstance(last.data, Broken)
        assert [type(each.data) for each in await log.read(job_id)] == [Submitted, Broken]
        await appended(log, new_event(job_id, 3, CancelRequested()), at)
        heard = [await subscription.next(5) for _ in range(3)]
    history = await log.read(job_id)
    assert [type(each.data) for each in history] == [Submitted, Broken, CancelRequested]
    assert heard == history
    assert {each.job_id for each in history} == {job_id}
    async with log.reader(after=0) as reader:
        read: list[Event] = []
        while len(read) < len(history):  # it may come in parts
            read += await reader.next(5)
        assert read == history
