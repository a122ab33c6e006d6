"""Nothing is missing on an owner's stream, whatever was slow or away as it was made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from events.errors import ReadTimeout
from events.job import Job
from serve_app.live.archived import ArchivedEvents
from serve_app.live.broadcaster import Broadcaster
from serve_app.live.recent import RecentEvent
from tests.support.edge import Edge, running_edge
from tests.support.live.stream import watching
from tests.support.polling import eventually
from tests.unit.serve_app.live.conftest import Watch, submit

PATH = "/v1/events"


def broadcaster_of(edge: Edge) -> Broadcaster:
    broadcaster: Broadcaster = edge.app.state.replica.streams._broadcaster
    return broadcaster


def failing(find: Callable[[str], Awaitable[Job | None]], times: int) -> Callable[..., object]:
    """The log answers too slowly at first."""
    left = [ReadTimeout() for _ in range(times)]

    async def find_job(job_id: str) -> Job | None:
        if left:
            raise left.pop()
        return await find(job_id)

    return find_job


async def test_an_event_whose_owner_is_not_known_in_time_is_told_later(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    job_id = await submit(client)
    belongings = broadcaster_of(edge)._belongings
    belongings._find_job = failing(belongings._find_job, 2)
    async with watch(PATH) as stream:
        await stream.began.wait()
        await edge.start(job_id)
        await submit(client)
        assert await stream.names(2) == ["started", "submitted"]


async def test_a_cursor_waits_for_the_owners_of_what_follows_it(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    job_id = await submit(client)
    async with watch(f"{PATH}?cursor=0") as stream:
        last = await stream.event()
    broadcaster = broadcaster_of(edge)
    broadcaster._forget()
    broadcaster._belongings._known.clear()
    belongings = broadcaster._belongings
    await edge.start(job_id)
    belongings._find_job = failing(belongings._find_job, 2)
    async with watch(PATH, last_event_id=last.id) as stream:
        assert await stream.names(1) == ["started"]


async def test_what_is_dropped_while_the_archive_is_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*_: object, **__: object) -> list[RecentEvent]:
        begun.set()
        await go_on.wait()
        return []

    monkeypatch.setattr(ArchivedEvents, "of", slow)
    async with running_edge(tmp_path, stream_replay_events=3) as edge:
        key = await edge.key("alice")
        async with await edge.client("alice") as client:
            await submit(client)
            await submit(client)
            async with watching(edge.app, f"{PATH}?cursor=0", key) as stream:
                await begun.wait()
                for _ in range(3):
                    await submit(client)
                recent = broadcaster_of(edge)._recent
                assert recent is not None
                await eventually(lambda: recent.head == 5)
                go_on.set()
                await stream.end()
    assert stream.status == 410
