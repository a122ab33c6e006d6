"""Streams of all jobs where the log is several streams: their cursors have a part of each."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from events.memory.log import MemoryLog
from tests.support.edge import Edge, running_edge
from tests.support.live.memory_streams import memory_streams
from tests.support.live.stream import Received, Stream, watching
from tests.unit.serve_app.live.conftest import Watch, submit

PATH = "/v1/events"
OF_A_JOB = ["submitted", "started", "image_stored", "completed"]


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    log = cast(MemoryLog, memory_streams(4)[0])
    async with running_edge(tmp_path, log=log) as edge:
        yield edge


async def run_jobs(edge: Edge, client: httpx.AsyncClient, count: int) -> None:
    """Beside each other, so that the events of several jobs lie among each other."""

    async def one() -> None:
        job_id = await submit(client)
        await asyncio.sleep(random.uniform(0, 0.02))
        await edge.run(job_id)

    await asyncio.gather(*(one() for _ in range(count)))


def told(events: list[Received]) -> list[tuple[str, str]]:
    return [(each.event, each.data["subject"]) for each in events]


async def received(stream: Stream, count: int) -> list[Received]:
    return [await stream.event() for _ in range(count)]


def forget(edge: Edge) -> None:
    """As after a while, or in another replica."""
    edge.app.state.replica.streams._broadcaster._forget()


@pytest.mark.parametrize("forgets", [False, True])
async def test_each_cursor_goes_on_without_a_gap_or_a_repeat(
    edge: Edge, client: httpx.AsyncClient, watch: Watch, forgets: bool
) -> None:
    async with watch(PATH) as stream:
        await stream.began.wait()
        await run_jobs(edge, client, 10)
        every = await received(stream, 40)
    assert len({each.id for each in every}) == 40
    assert Counter(name for name, _ in told(every)) == dict.fromkeys(OF_A_JOB, 10)
    for at in (0, 1, 7, 20, 38):
        if forgets:
            forget(edge)
        async with watch(PATH, last_event_id=every[at].id) as stream:
            rest = await received(stream, 39 - at)
        assert sorted(told(rest)) == sorted(told(every[at + 1 :]))
        assert rest[-1].id == every[-1].id


async def test_a_cursor_goes_on_through_what_is_stored_meanwhile(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    """Broken off again and again, in what was stored and in what comes."""
    work = asyncio.create_task(run_jobs(edge, client, 20))
    found: list[Received] = []
    last_id = "0"
    while len(found) < 80:
        if random.random() < 0.3:
            forget(edge)
        async with watch(PATH, last_event_id=last_id) as stream:
            found += await received(stream, min(random.randint(1, 12), 80 - len(found)))
            last_id = found[-1].id or last_id
    await work
    names: dict[str, list[str]] = {}
    for name, job_id in told(found):
        names.setdefault(job_id, []).append(name)
    assert list(names.values()) == [OF_A_JOB] * 20
    async with watch(PATH, last_event_id=last_id) as stream:
        await stream.began.wait()
        new = await submit(client)
        assert told(await received(stream, 1)) == [("submitted", new)]


async def test_a_stream_that_breaks_before_its_first_event_goes_on_from_its_beginning(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    await run_jobs(edge, client, 3)
    async with watch(PATH) as stream:
        await stream.began.wait()
    missed = await submit(client)
    async with watch(PATH, last_event_id=stream.last_id) as again:
        assert (await again.event()).data["subject"] == missed


async def test_a_stream_of_one_job_has_its_positions(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    async with watch(f"/v1/jobs/{job_id}/events") as stream:
        every = await received(stream, 4)
    ids = [str(event.position) for event in await edge.log.read(job_id)]
    assert [each.id for each in every] == ids
    async with watch(f"/v1/jobs/{job_id}/events", last_event_id=ids[1]) as stream:
        assert await stream.names(2) == OF_A_JOB[2:]


@pytest.mark.parametrize("cursor", ["4000-4001-4002-4003", "1-2", "0-0-0-4003", "-".join("0" * 16)])
async def test_a_cursor_that_was_not_answered_here_is_refused(
    edge: Edge, client: httpx.AsyncClient, watch: Watch, cursor: str
) -> None:
    await run_jobs(edge, client, 2)
    async with watch(f"{PATH}?cursor={cursor}") as stream:
        await stream.end()
    assert stream.status == 410


@pytest.mark.parametrize("cursor", ["1-", "a", "1,2", "-1", "1" * 19])
async def test_what_is_no_cursor_is_refused(edge: Edge, watch: Watch, cursor: str) -> None:
    for path, last_event_id in ((f"{PATH}?cursor={cursor}", None), (PATH, cursor)):
        async with watch(path, last_event_id=last_event_id) as stream:
            await stream.end()
        assert stream.status == 400


async def test_what_left_the_bound_of_recent_events_is_read_again(tmp_path: Path) -> None:
    """Each stream has its own floor."""
    log = cast(MemoryLog, memory_streams(4)[0])
    async with running_edge(tmp_path, log=log, stream_replay_events=60) as edge:
        key = await edge.key("alice")
        async with await edge.client("alice") as client:
            async with watching(edge.app, PATH, key) as stream:
                await stream.began.wait()
                await run_jobs(edge, client, 15)
                every = await received(stream, 60)
                assert len(edge.app.state.replica.streams._broadcaster._recent._events) == 60
                await run_jobs(edge, client, 2)
                every += await received(stream, 8)
            async with watching(edge.app, PATH, key, last_event_id=every[7].id) as stream:
                rest = await received(stream, 60)
            assert sorted(told(rest)) == sorted(told(every[8:]))
            async with watching(edge.app, f"{PATH}?cursor=0", key) as stream:
                await stream.end()
            assert stream.status == 410
