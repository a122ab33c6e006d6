"""What a cursor finds in the archive is read for one stream after another."""

import asyncio

import pytest

from events.types import Event
from serve_app.access.turns import Turns
from serve_app.live.archived import ArchivedEvents
from serve_app.refusals import NoTurn
from tests.support.polling import eventually


class Archive:
    """Of jobs and of their events, both at once; each owner has one job."""

    def __init__(self) -> None:
        self.reading: list[str] = []
        self.go_on = asyncio.Event()

    async def left(self, owner: str, *, after: int, limit: int) -> list[tuple[str, str]]:
        return [(f"job of {owner}", "default")]

    async def read(self, job_id: str) -> list[Event]:
        self.reading.append(job_id)
        await self.go_on.wait()
        return []


@pytest.fixture
def archive() -> Archive:
    return Archive()


def archived(archive: Archive, *, timeout_s: float) -> ArchivedEvents:
    turns = Turns(2, per_owner=1, timeout_s=timeout_s)
    return ArchivedEvents(archive, archive, turns, url_for=lambda *_: "", most_jobs=5)


async def test_one_owner_waits_for_a_turn_and_lets_another_pass(archive: Archive) -> None:
    events = archived(archive, timeout_s=30)
    owners = ("alice", "alice", "bob")
    reads = [asyncio.create_task(events.of(owner, after=0, upto=9)) for owner in owners]
    await eventually(lambda: len(archive.reading) == 2)
    assert archive.reading == ["job of alice", "job of bob"]
    archive.go_on.set()
    await asyncio.gather(*reads)
    assert archive.reading == ["job of alice", "job of bob", "job of alice"]


async def test_who_waits_too_long_is_told_to_come_again(archive: Archive) -> None:
    events = archived(archive, timeout_s=0.01)
    first = asyncio.create_task(events.of("alice", after=0, upto=9))
    await asyncio.sleep(0)
    with pytest.raises(NoTurn):
        await events.of("alice", after=0, upto=9)
    archive.go_on.set()
    assert await first == []
