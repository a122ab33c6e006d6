"""What a stream may cost: how many there are, how long they last, how slowly they are read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from events.job_progress import JobProgress
from serve_app.access.api_keys import parse
from serve_app.live.streams import OpenStreams, ServerEnd
from serve_app.refusals import TooManyStreams
from tests.support.edge import Client, Edge, submit
from tests.support.live.stream import DEADLINE_S
from tests.support.polling import eventually
from tests.unit.serve_app.live.conftest import Watch

PATH = "/v1/events"


def test_each_owner_and_all_together_have_so_many() -> None:
    streams = OpenStreams(3, per_owner=2)
    with streams.count_stream("alice"), streams.count_stream("alice"):
        with pytest.raises(TooManyStreams, match="2 event streams"), streams.count_stream("alice"):
            pass
        with streams.count_stream("bob"):
            assert streams.count == 3
            with pytest.raises(TooManyStreams, match="3 event"), streams.count_stream("carol"):
                pass
    assert streams.count == 0


def test_0_is_any_number_of_an_owner() -> None:
    streams = OpenStreams(3, per_owner=0)
    with streams.count_stream("alice"), streams.count_stream("alice"):
        assert streams.count == 2


@pytest.mark.edge(owner_max_streams=1)
async def test_one_too_many_is_refused_and_one_that_ends_makes_room(watch: Watch) -> None:
    async with watch(PATH) as first:
        await first.began.wait()
        async with watch(PATH) as second:
            await second.end()
        assert second.status == 429
        assert b"too_many_streams" in second.body
        assert second.headers["retry-after"] == "5"
    async with watch(PATH) as third:
        await third.began.wait()
    assert third.status == 200


async def test_the_log_is_followed_once_and_not_without_streams(
    edge: Edge, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.live.broadcaster._LINGER_S", 0.0)
    broadcaster = edge.app.state.replica.job_access.live.streams._broadcaster
    assert broadcaster._follower is None
    async with watch(PATH) as first, watch(PATH) as second:
        await first.began.wait()
        follower = broadcaster._follower
        await second.began.wait()
        assert broadcaster._follower is follower is not None
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([follower])
    assert broadcaster._recent is None


@pytest.mark.edge(stream_keep_alive_s=0.01)
async def test_a_silent_stream_says_that_it_is_there(watch: Watch) -> None:
    async with watch(PATH) as stream:
        assert (await stream.next()).comment == "keep-alive"
        assert (await stream.next()).comment == "keep-alive"


@pytest.mark.edge(stream_max_s=0.05)
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_stream_ends_when_its_time_is_over(
    edge: Edge, client: Client, watch: Watch, is_busy: bool
) -> None:
    async with watch(PATH) as stream:
        job_id = await submit(client)
        async with asyncio.timeout(DEADLINE_S):
            while not stream.done.is_set():
                if is_busy:
                    edge.progress.tell(job_id, JobProgress(done=1, total=2))
                await asyncio.sleep(0.005)
    assert stream.is_whole


@pytest.mark.edge(stream_keep_alive_s=0.01, key_cache_s=0.001)
async def test_a_revoked_key_ends_its_streams(edge: Edge, key: str, watch: Watch) -> None:
    async with watch(PATH) as stream:
        await stream.next()
        parsed = parse(key)
        assert parsed is not None
        await edge.services.keys.revoke(parsed.id, at=datetime.now(UTC))
        await stream.end()
    assert stream.is_whole


@pytest.mark.edge(stream_send_timeout_s=0.02)
async def test_who_takes_nothing_is_cut_off(edge: Edge, client: Client, watch: Watch) -> None:
    async with watch(PATH) as stream:
        await stream.began.wait()
        stream.takes.clear()
        await submit(client)
        await stream.end()
    assert (stream.status, stream.is_whole) == (200, False)
    assert edge.app.state.replica.job_access.live.streams._open.count == 0


@pytest.mark.edge(stream_buffer_events=3)
async def test_who_falls_behind_is_cut_off_and_goes_on_where_they_were(
    client: Client, watch: Watch
) -> None:
    async with watch(PATH) as stream:
        await stream.began.wait()
        first = await submit(client)
        last = await stream.event()
        stream.takes.clear()
        jobs = [await submit(client) for _ in range(6)]
        stream.takes.set()
        received = [last, *await stream.end()]
    assert not stream.is_whole
    async with watch(PATH, last_event_id=received[-1].id) as stream:
        received += [await stream.event() for _ in range(7 - len(received))]
    assert [each.data["subject"] for each in received] == [first, *jobs]


@pytest.mark.edge(stream_buffer_events=3)
async def test_a_replay_may_be_longer_than_what_may_wait(client: Client, watch: Watch) -> None:
    jobs = [await submit(client) for _ in range(6)]
    async with watch(f"{PATH}?cursor=0") as stream:
        received = [await stream.event() for _ in range(6)]
        jobs.append(await submit(client))
        received.append(await stream.event())
    assert [each.data["subject"] for each in received] == jobs


async def test_of_progress_only_the_newest_waits(edge: Edge, client: Client, watch: Watch) -> None:
    async with watch(PATH) as stream:
        job_id = await submit(client)
        await stream.event()
        stream.takes.clear()
        for done in range(1, 101):
            edge.progress.tell(job_id, JobProgress(done=done, total=100))
            await asyncio.sleep(0)
        stream.takes.set()
        told = (await stream.event()).data["step"]
        if told < 100:
            told = (await stream.event()).data["step"]
    assert told == 100


@pytest.mark.edge(stream_replay_events=3)
async def test_a_cursor_that_is_too_old_says_what_to_do(client: Client, watch: Watch) -> None:
    for _ in range(5):
        await submit(client)
    async with watch(f"{PATH}?cursor=1") as stream:
        await stream.end()
    assert stream.status == 410
    assert b"GET /v1/jobs" in stream.body
    async with watch(f"{PATH}?cursor=2") as stream:
        ids = [(await stream.event()).id for _ in range(3)]
        await submit(client)
        ids.append((await stream.event()).id)
    assert ids == ["3", "4", "5", "6"]


async def listener() -> tuple[asyncio.Server, tuple[str, int]]:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[:2]


async def test_streams_end_whole_once_nobody_listens(client: Client, watch: Watch) -> None:
    server, address = await listener()
    job_id = await submit(client)
    async with (
        watch(PATH, server=address) as owners,
        watch(f"/v1/jobs/{job_id}/events", server=address) as jobs,
    ):
        await jobs.event()
        server.close()
        await server.wait_closed()
        await owners.end()
        await jobs.end()
    assert owners.is_whole
    assert jobs.is_whole


async def test_a_server_that_listens_ends_nothing() -> None:
    ended: list[bool] = []
    asked = asyncio.Event()
    server, address = await listener()

    def are_streams() -> bool:
        if ended:
            return False
        asked.set()
        return True

    end = ServerEnd(lambda: ended.append(True), are_streams=are_streams, period_s=0.001)
    end.begin(address)
    await asked.wait()
    asked.clear()
    await asked.wait()
    assert not ended
    server.close()
    await server.wait_closed()
    await eventually(lambda: ended)
    end.stop()


async def test_a_server_that_is_not_known_is_not_asked() -> None:
    end = ServerEnd(lambda: None, are_streams=lambda: True)
    end.begin(None)
    end.begin(("darkroom.test", None))
    assert end._watch is None
