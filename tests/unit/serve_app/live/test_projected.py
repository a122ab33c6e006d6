"""Waiting for the rows: once for all who do."""

from __future__ import annotations

import asyncio

import pytest

from events.errors import DatabaseUnavailable
from serve_app.live.projected import ProjectionWaiter
from tests.support.polling import eventually


async def nothing_stored() -> int:
    return 0


class Rows:
    def __init__(self) -> None:
        self.position = 0
        self.reads = 0
        self.error: Exception | None = None

    async def checkpoint(self) -> int:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.position


async def test_all_who_wait_look_together_and_what_is_known_is_not_looked_up_again() -> None:
    rows = Rows()
    projected = ProjectionWaiter(rows.checkpoint, nothing_stored)
    waiting = [asyncio.create_task(projected.reach(5)) for _ in range(100)]
    await eventually(lambda: rows.reads > 2)
    reads = rows.reads
    assert reads < 100
    rows.position = 7
    await asyncio.gather(*waiting)
    assert rows.reads <= reads + 2
    reads = rows.reads
    await projected.reach(7)
    assert rows.reads == reads


async def test_rows_that_do_not_come_are_not_waited_for_long() -> None:
    projected = ProjectionWaiter(Rows().checkpoint, nothing_stored, longest_s=0.05)
    await projected.reach(1)
    await projected.stop()


async def test_each_who_waits_is_told_that_the_database_is_away() -> None:
    rows = Rows()
    projected = ProjectionWaiter(rows.checkpoint, nothing_stored)
    rows.error = DatabaseUnavailable("away")
    answers = await asyncio.gather(*(projected.reach(1) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in answers] == [DatabaseUnavailable] * 3
    rows.error, rows.position = None, 1
    await projected.reach(1)


async def test_one_who_gives_up_ends_nobody_elses_wait() -> None:
    rows = Rows()
    projected = ProjectionWaiter(rows.checkpoint, nothing_stored)
    first = asyncio.create_task(projected.reach(1))
    second = asyncio.create_task(projected.reach(1))
    await eventually(lambda: rows.reads)
    first.cancel()
    rows.position = 1
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
