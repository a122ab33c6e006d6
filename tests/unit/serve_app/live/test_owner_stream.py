"""`GET /v1/events`: all jobs of the caller, from now or from a cursor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.errors import LogUnavailable
from events.log import StoredEvent
from events.memory.contents import MemoryLogContents
from events.types import Event
from events.wire.cloud_events import decode_stored
from events.wire.progress import JobProgress
from serve_app.live import backlog
from tests.support.edge import Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.live.stream import DEADLINE_S, watching
from tests.unit.serve_app.live.conftest import Watch, submit

PATH = "/v1/events"


async def test_a_stream_tells_what_happens_to_every_job_of_the_caller_from_now_on(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    await edge.run(await submit(client))
    async with watch(PATH) as stream:
        await stream.began.wait()
        first, second = await submit(client), await submit(client)
        await edge.start(second)
        received = [await stream.event() for _ in range(3)]
    told = [(each.event, each.data["subject"]) for each in received]
    assert told == [("submitted", first), ("submitted", second), ("started", second)]


async def test_no_event_of_another_owner_is_told(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    async with await edge.client("bob") as bob, watch(f"{PATH}?cursor=0") as stream:
        await stream.began.wait()
        others = await submit(bob)
        await edge.start(others)
        edge.progress.tell(others, JobProgress(done=1, total=2))
        mine = await submit(client)
        received = await stream.event()
    assert received.data["subject"] == mine
    assert others.encode() not in stream.body


async def test_each_cursor_goes_on_without_a_gap_or_a_repeat(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    jobs = [await submit(client) for _ in range(3)]
    for job_id in jobs:
        await edge.run(job_id)
    async with watch(f"{PATH}?cursor=0") as stream:
        every = [await stream.event() for _ in range(12)]
    for place in range(11):
        async with watch(PATH, last_event_id=every[place].id) as stream:
            rest = [await stream.event() for _ in range(11 - place)]
        assert rest == every[place + 1 :]


async def test_a_stream_that_breaks_before_its_first_event_goes_on_from_its_beginning(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    await edge.run(await submit(client))
    async with watch(PATH) as stream:
        await stream.began.wait()
    missed = await submit(client)
    async with watch(PATH, last_event_id=stream.last_id) as again:
        assert (await again.event()).data["subject"] == missed


async def test_a_cursor_is_followed_by_what_was_stored_while_nobody_watched(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    job_id = await submit(client)
    async with watch(f"{PATH}?cursor=0") as stream:
        last = await stream.event()
    edge.app.state.replica.streams._broadcaster._forget()  # as after a while, or in another replica
    await edge.start(job_id)
    await edge.store_image(job_id)
    async with watch(PATH, last_event_id=last.id) as stream:
        assert await stream.names(2) == ["started", "image_stored"]
        await edge.complete(job_id)
        assert await stream.names(1) == ["completed"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("status=0", ["submitted", "started", "image_stored", "submitted"]),
        ("status=1", ["completed"]),
        ("status=2", ["cancelled"]),
        ("endpoint=default", ["submitted", "started", "image_stored", "completed"]),
    ],
)
async def test_what_is_not_asked_for_is_not_told(
    edge: Edge, client: httpx.AsyncClient, watch: Watch, query: str, names: list[str]
) -> None:
    await edge.run(await submit(client))
    await client.post(f"/v1/jobs/{await submit(client)}/cancel")
    async with watch(f"{PATH}?cursor=0&{query}") as stream:
        assert await stream.names(len(names)) == names


async def test_another_endpoint_is_passed_over(tmp_path: Path) -> None:
    async with (
        running_edge(tmp_path, stream_keep_alive_s=0.01) as edge,
        await edge.client() as client,
    ):
        await submit(client)
        path = f"{PATH}?cursor=0&endpoint=other"
        async with watching(edge.app, path, await edge.key()) as stream:
            received = await stream.next()
    assert received.comment == "keep-alive"


async def test_an_erased_job_leaves_its_erasure_alone(
    client: httpx.AsyncClient, watch: Watch
) -> None:
    job_id = await submit(client)
    async with watch(f"{PATH}?cursor=0") as stream:
        await stream.names(1)
        await client.delete(f"/v1/jobs/{job_id}")
        while (await stream.event()).event != "erased":
            pass
    async with watch(f"{PATH}?cursor=0") as stream:
        received = await stream.event()
    assert (received.event, received.data["subject"]) == ("erased", job_id)


async def test_a_long_way_back_holds_up_no_other_stream(
    client: httpx.AsyncClient, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    following = MemoryLogContents.following

    async def slow(contents: MemoryLogContents, sequence: int) -> list[StoredEvent]:
        begun.set()
        await go.wait()
        return await following(contents, sequence)

    monkeypatch.setattr(MemoryLogContents, "following", slow)
    job_id = await submit(client)
    async with watch(f"{PATH}?cursor=0") as behind:
        await begun.wait()
        async with watch(f"/v1/jobs/{job_id}/events") as other:
            assert await other.names(1) == ["submitted"]
            assert not behind.began.is_set()
        go.set()
        assert await behind.names(1) == ["submitted"]


async def test_a_cursor_of_the_future_is_refused(watch: Watch) -> None:
    async with watch(f"{PATH}?cursor=1000000") as stream:
        await stream.end()
    assert stream.status == 410


async def test_progress_of_a_job_that_began_before_is_told_once_its_owner_is_known(
    edge: Edge, client: httpx.AsyncClient, watch: Watch
) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    async with watch(PATH) as stream:
        await stream.began.wait()
        received = None
        async with asyncio.timeout(DEADLINE_S):
            while received is None:
                edge.progress.tell(job_id, JobProgress(done=1, total=2))
                await asyncio.sleep(0.01)
                if b"event: progress" in stream.body:
                    received = await stream.event()
    assert received.data["request_id"] == job_id


async def test_a_log_that_is_away_gets_503_before_the_stream_begins(
    edge: Edge, log: FailingLog, key: str
) -> None:
    log.read_error = LogUnavailable()
    async with watching(edge.app, PATH, key) as stream:
        await stream.end()
    assert stream.status == 503


async def test_others_have_their_turns_while_events_are_read_again(
    client: httpx.AsyncClient, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of large requests take seconds to be read."""
    turn, turns = 0, []

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(*args: Any, **options: Any) -> Event:
        turns.append(turn)
        return decode_stored(*args, **options)

    monkeypatch.setattr(backlog, "decode_stored", noted)
    for _ in range(10):
        await submit(client)
    counting = asyncio.create_task(count())
    async with watch(f"{PATH}?cursor=0") as stream:
        await stream.names(10)
    counting.cancel()
    assert len(turns) == len(set(turns)) == 10
