"""The ports of a replica, on Serve's own server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray.serve._private.replica as replica_module
from ray.serve.config import HTTPOptions
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from examples.service import free_port
from serve_app.replica_port import limit_websocket_messages
from tests.support.patience import FACTOR
from tests.support.polling import eventually

_MOST = 1000


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "websocket"
    await send({"type": "websocket.accept"})
    while (said := await receive())["type"] != "websocket.disconnect":
        if said["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": said["text"]})


async def test_a_long_message_on_a_websocket_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    start = replica_module.start_asgi_http_server
    monkeypatch.setattr(replica_module, "start_asgi_http_server", start)  # it is put back
    limit_websocket_messages(_MOST)
    task, server = await replica_module.start_asgi_http_server(
        _echo,
        HTTPOptions(host="127.0.0.1", port=port),
        event_loop=asyncio.get_running_loop(),
    )
    try:
        await eventually(lambda: server.started)
        async with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as websocket:
            await websocket.send("x" * _MOST)
            assert await websocket.recv() == "x" * _MOST
            await websocket.send("x" * (_MOST + 1))
            with pytest.raises(ConnectionClosedError) as closed:
                await websocket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 10 * FACTOR)
