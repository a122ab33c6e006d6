"""`/ws` under load and at its end: slow readers, many sockets, revoked keys, a server that goes."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from tests.support.edge import Client, Edge
from tests.support.live.websocket import connected
from tests.support.polling import eventually
from tests.unit.serve_app.protocols.comfyui.conftest import Connect, queue

pytestmark = pytest.mark.edge(
    max_streams=3,
    owner_max_streams=2,
    stream_send_timeout_s=0.2,
    stream_keep_alive_s=0.05,
    key_cache_s=0.05,
)


async def test_sockets_are_counted_with_the_streams(edge: Edge, connect: Connect) -> None:
    bob = {"Authorization": f"Bearer {await edge.key('bob')}"}
    async with connect() as first:
        await first.until("status")
        async with connect() as second:
            await second.until("status")
            async with connect() as third:
                await eventually(lambda: third.status == 429)
            async with connected(edge.app, "/ws", headers=bob) as others:
                await others.until("status")
    async with connect() as later:
        await later.until("status")


async def test_who_takes_nothing_is_cut_off(edge: Edge, client: Client, connect: Connect) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        websocket.reading.clear()
        await edge.start(await queue(client))
        listeners = edge.progress.listeners
        await eventually(lambda: len(listeners) == 1)  # that of event streams alone
        websocket.reading.set()
        await eventually(lambda: websocket.close_code == 1013)


async def test_a_socket_ends_with_its_key(edge: Edge, key: str, connect: Connect) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        await edge.services.keys.revoke(key.split("_")[1], datetime.now(UTC))
        await eventually(lambda: websocket.close_code == 1008)


async def test_a_socket_ends_with_the_server(edge: Edge, connect: Connect) -> None:
    async with connect() as websocket:
        await websocket.until("status")
        await edge.app.state.replica.job_access.live.streams.stop()
        await eventually(lambda: websocket.close_code == 1001)


def test_the_server_may_log_an_exception_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("uvicorn.error").error(OSError("address in use"))
    assert "address in use" in caplog.text


def test_the_server_logs_no_path_with_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    where = ("127.0.0.1:5", "/key/dk_a_s3cret/ws?token=dk_a_s3cret")
    logger = logging.getLogger("uvicorn.error")
    logger.info('%s - "WebSocket %s" [accepted]', *where)
    logger.info('%s - "WebSocket %s" 403', *where)
    logger.info('%s - "WebSocket %s" %d', *where, 401)
    assert "s3cret" not in caplog.text
