"""`GET /v1/events`: all jobs of the caller, from now or from a cursor, without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from events.cloud_events import decode_stored
from events.errors import LogUnavailable, ReadTimeout
from events.job import Job
from events.job_progress import JobProgress
from events.log import StoredEvent
from events.types import Event
from serve_app.live import broadcaster
from serve_app.live.broadcaster import Broadcaster, HistoryEvents, RecentEvent
from tests.support.edge import Client, Edge, submit
from tests.support.failing_log import FailingLog
from tests.support.live.stream import DEADLINE_S
from tests.support.memory.contents import MemoryLogContents
from tests.support.polling import eventually
from tests.unit.serve_app.live.conftest import Watch

PATH = "/v1/events"


def broadcaster_of(edge: Edge) -> Broadcaster:
    broadcaster: Broadcaster = edge.app.state.replica.job_access.live.streams._broadcaster
    return broadcaster


async def test_a_stream_tells_what_happens_to_every_job_of_the_caller_from_now_on(
    edge: Edge, client: Client, watch: Watch
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
    edge: Edge, client: Client, bob: Client, watch: Watch
) -> None:
    async with watch(f"{PATH}?cursor=0") as stream:
        await stream.began.wait()
        others = await submit(bob)
        await edge.start(others)
        edge.progress.tell(others, JobProgress(done=1, total=2))
        mine = await submit(client)
        received = await stream.event()
    assert received.data["subject"] == mine
    assert others.encode() not in stream.body


async def test_each_cursor_goes_on_without_a_gap_or_a_repeat(
    edge: Edge, client: Client, watch: Watch
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
    edge: Edge, client: Client, watch: Watch
) -> None:
    await edge.run(await submit(client))
    async with watch(PATH) as stream:
        await stream.began.wait()
    missed = await submit(client)
    async with watch(PATH, last_event_id=stream.last_id) as again:
        assert (await again.event()).data["subject"] == missed


async def test_a_cursor_is_followed_by_what_was_stored_while_nobody_watched(
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client)
    async with watch(f"{PATH}?cursor=0") as stream:
        last = await stream.event()
    broadcaster_of(edge)._forget()  # as after a while, or in another replica
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
    edge: Edge, client: Client, watch: Watch, query: str, names: list[str]
) -> None:
    await edge.run(await submit(client))
    await client.post(f"/v1/jobs/{await submit(client)}/cancel")
    async with watch(f"{PATH}?cursor=0&{query}") as stream:
        assert await stream.names(len(names)) == names


@pytest.mark.edge(stream_keep_alive_s=0.01)
async def test_another_endpoint_is_passed_over(client: Client, watch: Watch) -> None:
    await submit(client)
    async with watch(f"{PATH}?cursor=0&endpoint=other") as stream:
        assert (await stream.next()).comment == "keep-alive"


async def test_an_erased_job_leaves_its_erasure_alone(client: Client, watch: Watch) -> None:
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
    client: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch
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
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    async with watch(PATH) as stream:
        await stream.began.wait()
        async with asyncio.timeout(DEADLINE_S):
            while b"event: progress" not in stream.body:
                edge.progress.tell(job_id, JobProgress(done=1, total=2))
                await asyncio.sleep(0.01)
        assert (await stream.event()).data["request_id"] == job_id


async def test_a_log_that_is_away_gets_503_before_the_stream_begins(
    log: FailingLog, watch: Watch
) -> None:
    log.read_error = LogUnavailable()
    async with watch(PATH) as stream:
        await stream.end()
    assert stream.status == 503


async def test_others_have_their_turns_while_events_are_read_again(
    client: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch
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

    monkeypatch.setattr(broadcaster, "decode_stored", noted)
    for _ in range(10):
        await submit(client)
    counting = asyncio.create_task(count())
    async with watch(f"{PATH}?cursor=0") as stream:
        await stream.names(10)
    counting.cancel()
    assert len(turns) == len(set(turns)) == 10


def failing(find: Callable[[str], Awaitable[Job | None]], times: int) -> Callable[..., object]:
    """The log answers too slowly at first."""
    left = [ReadTimeout() for _ in range(times)]

    async def find_job(job_id: str) -> Job | None:
        if left:
            raise left.pop()
        return await find(job_id)

    return find_job


async def test_an_event_whose_owner_is_not_known_in_time_is_told_later(
    edge: Edge, client: Client, watch: Watch
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
    edge: Edge, client: Client, watch: Watch
) -> None:
    job_id = await submit(client)
    async with watch(f"{PATH}?cursor=0") as stream:
        last = await stream.event()
    broadcaster_of(edge)._forget()
    belongings = broadcaster_of(edge)._belongings
    belongings._known.clear()
    await edge.start(job_id)
    belongings._find_job = failing(belongings._find_job, 2)
    async with watch(PATH, last_event_id=last.id) as stream:
        assert await stream.names(1) == ["started"]


@pytest.mark.edge(stream_replay_events=3)
async def test_what_is_dropped_while_histories_are_read_is_not_passed_over(
    edge: Edge, client: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*_: object, **__: object) -> list[RecentEvent]:
        begun.set()
        await go_on.wait()
        return []

    monkeypatch.setattr(HistoryEvents, "of", slow)
    await submit(client)
    await submit(client)
    async with watch(f"{PATH}?cursor=0") as stream:
        await begun.wait()
        for _ in range(3):
            await submit(client)
        recent = broadcaster_of(edge)._recent
        assert recent is not None
        await eventually(lambda: recent.head == 5)
        go_on.set()
        await stream.end()
    assert stream.status == 410
