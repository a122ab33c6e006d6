"""The histories that a cursor leads to are read for one stream after another."""

import asyncio

import pytest

from events.errors import HistoryBroken
from events.types import Cancelled, Event, Started
from serve_app.fair_threads import FairSemaphore
from serve_app.live.broadcaster import HistoryEvents
from serve_app.refusals import Busy
from storage.images import ImageNotFound
from tests.support.events import JOB_ID, history_of, submitted
from tests.support.polling import eventually


class Histories:
    """A fake of both sources. An owner has one job, or two if the read of one fails."""

    def __init__(self) -> None:
        self.reading: list[str] = []
        self.go_on = asyncio.Event()
        self.errors: dict[str, Exception] = {}
        self.events: list[Event] = []

    async def with_history(self, owner: str, *, after: int, limit: int) -> list[tuple[str, str]]:
        return [(f"job of {owner}", "default"), (JOB_ID, "default")][: 1 + len(self.errors)]

    async def read(self, job_id: str) -> list[Event]:
        self.reading.append(job_id)
        await self.go_on.wait()
        if (error := self.errors.get(job_id)) is not None:
            raise error
        return self.events


@pytest.fixture
def histories() -> Histories:
    return Histories()


def owners_events(histories: Histories, *, timeout_s: float) -> HistoryEvents:
    turns = FairSemaphore(2, per_owner=1, timeout_s=timeout_s)
    return HistoryEvents(histories, histories, turns, url_for=lambda *_: "", most_jobs=5)


async def test_one_owner_waits_for_a_turn_and_lets_another_pass(histories: Histories) -> None:
    events = owners_events(histories, timeout_s=30)
    owners = ("alice", "alice", "bob")
    reads = [asyncio.create_task(events.of(owner, after=0, upto=9)) for owner in owners]
    await eventually(lambda: len(histories.reading) == 2)
    assert histories.reading == ["job of alice", "job of bob"]
    histories.go_on.set()
    await asyncio.gather(*reads)
    assert histories.reading == ["job of alice", "job of bob", "job of alice"]


async def test_who_waits_too_long_is_told_to_come_again(histories: Histories) -> None:
    events = owners_events(histories, timeout_s=0.01)
    first = asyncio.create_task(events.of("alice", after=0, upto=9))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await events.of("alice", after=0, upto=9)
    histories.go_on.set()
    assert await first == []


@pytest.mark.parametrize("error", [HistoryBroken("cut off"), ImageNotFound("gone")])
async def test_a_history_that_is_lost_or_damaged_hides_no_other_job(
    histories: Histories, error: Exception
) -> None:
    events = owners_events(histories, timeout_s=1)
    histories.go_on.set()
    histories.errors["job of alice"] = error
    histories.events = history_of(submitted(), Started(attempt=1, actor="a"), Cancelled())
    assert await events.of("alice", after=0, upto=99)
