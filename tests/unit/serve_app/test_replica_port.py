"""The ports of a replica, on Serve's own server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import ray.serve._private.replica as replica_module
import uvicorn
from ray.serve.config import HTTPOptions
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from examples.service import free_port
from serve_app.replica_port import limit_connections
from tests.support.patience import FACTOR
from tests.support.polling import eventually

_MOST_BYTES = 64 * 1024
_HEAD = (
    "GET {} HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{}\r\n"
)


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "websocket"
    await send({"type": "websocket.accept"})
    while (said := await receive())["type"] != "websocket.disconnect":
        if said["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": said["text"]})


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(autouse=True)
async def server(monkeypatch: pytest.MonkeyPatch, port: int) -> AsyncGenerator[uvicorn.Server]:
    start = replica_module.start_asgi_http_server
    monkeypatch.setattr(replica_module, "start_asgi_http_server", start)  # it is put back
    limit_connections()
    task, server = await replica_module.start_asgi_http_server(
        _echo,
        HTTPOptions(host="127.0.0.1", port=port),
        event_loop=asyncio.get_running_loop(),
    )
    await eventually(lambda: server.started)
    yield server
    server.should_exit = True
    await asyncio.wait_for(task, 10 * FACTOR)


async def test_the_kernel_holds_little_of_an_answer(server: uvicorn.Server, port: int) -> None:
    async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None):
        [connection] = server.server_state.connections
        held = connection.transport.get_extra_info("socket")
        assert held.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 65_536


async def test_a_long_message_on_a_websocket_closes_it(port: int) -> None:
    async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as websocket:
        assert not websocket.protocol.extensions  # Nothing is decompressed.
        await websocket.send("x" * _MOST_BYTES)
        assert await websocket.recv() == "x" * _MOST_BYTES
        await websocket.send("x" * (_MOST_BYTES + 1))
        with pytest.raises(ConnectionClosedError) as closed:
            await websocket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def _frame(first_byte: int, size: int = 0) -> bytes:
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([first_byte]) + length + bytes(4) + b"1" * size


@pytest.mark.parametrize(
    ("frames", "most_answered"),
    [
        ([_frame(0x89)] * 250_000, 2_000),
        ([_frame(0x8A, 125)] * 10_000, 2_000),
        ([_frame(0x01), *[_frame(0x00)] * 250_000], 2_000),
        ([_frame(0x81, 1)] * 10_000, 2_000),
        ([_frame(0x81, 60_000)] * 30, 300_000),
    ],
    ids=["pings", "pongs", "empty fragments", "short messages", "long messages"],
)
async def test_a_flood_on_a_websocket_closes_it_before_it_is_parsed(
    port: int, frames: list[bytes], most_answered: int
) -> None:
    async with asyncio.timeout(20 * FACTOR):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HEAD.format("/ws", "").encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.write(b"".join(frames))
        received = await reader.read()
    writer.close()
    answers, reason, rest = received.partition(b"too many frames or bytes")
    assert reason
    assert not rest
    assert int.from_bytes(answers[-2:], "big") == 1008
    assert len(answers) < most_answered


async def test_what_a_client_sends_in_a_long_time_is_not_limited(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.replica_port._PERIOD_S", 0.0)
    async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as websocket:
        for _ in range(300):
            await websocket.send("x")
            assert await websocket.recv() == "x"


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [("/ws?" + "a" * 9000, "", 414), ("/ws", f"Cookie: {'a' * 9000}\r\n", 431)],
    ids=["path", "header"],
)
async def test_a_websocket_with_a_long_line_is_answered(
    port: int, path: str, header: str, status: int
) -> None:
    async with asyncio.timeout(20 * FACTOR):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HEAD.format(path, header).encode())
        answer = await reader.read()
    writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
