"""Streams end by themselves when the server that they came through takes no more calls."""

from __future__ import annotations

import asyncio

import httpx

from serve_app.live.server_end import ServerEnd
from tests.support.edge import Edge
from tests.support.live.stream import DEADLINE_S, watching
from tests.unit.serve_app.live.conftest import submit


async def listener() -> tuple[asyncio.Server, tuple[str, int]]:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[:2]


async def test_streams_end_whole_once_nobody_listens(edge: Edge, client: httpx.AsyncClient) -> None:
    server, address = await listener()
    key, job_id = await edge.key(), await submit(client)
    async with (
        watching(edge.app, "/v1/events", key, server=address) as owners,
        watching(edge.app, f"/v1/jobs/{job_id}/events", key, server=address) as jobs,
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
    async with asyncio.timeout(DEADLINE_S):
        while not ended:  # noqa: ASYNC110 - it is a list
            await asyncio.sleep(0.001)
    end.stop()


async def test_a_server_that_is_not_known_is_not_asked() -> None:
    end = ServerEnd(lambda: None, are_streams=lambda: True)
    end.begin(None)
    end.begin(("darkroom.test", None))
    assert end._watch is None
