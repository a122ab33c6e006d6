"""Restricts the address of a replica's gRPC port, and the buffers and frames of connections.

Ray Serve has no settings for these restrictions.

The gRPC server of a replica receives calls of other deployments as pickles, without a token.
Anyone who can reach the server can therefore run code in the replica. By default the server
listens on every address of the machine (`ray/serve/_private/replica.py`). Here it listens only on
the address of its node.

The kernel buffers up to 4 MiB of the answers on each connection that are not read. Here this buffer
is small.

The application receives only whole messages of a websocket. So the HTTP server of the replica has
to count control frames and fragments.
"""

from __future__ import annotations

import socket
from asyncio import Transport
from typing import Any

import ray
import ray.serve._private.replica as replica_module
from ray._common.tls_utils import add_port_to_grpc_server
from ray.serve._private.http_util import start_asgi_http_server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from settings.constant import constant
from settings.http import REPLICA_BUFFER_BYTES

_MAX_MESSAGE_BYTES = 64 * 1024
_MAX_FRAMES = constant("MAX_WEBSOCKET_FRAMES", 200)
_MAX_BYTES = constant("MAX_WEBSOCKET_BYTES", 256 * 1024)
"""The most frames and bytes that a client may send on one websocket within `_PERIOD_S`. Clients of
ComfyUI send one message at the start and then only pongs.
"""
_PERIOD_S = 10.0
_PART_BYTES = 1024
"""The most bytes that are parsed before their frames are counted."""


def listen_on_node_address() -> None:
    """Make the gRPC server of this process's replica listen on the node's address only.

    The replica's constructor must call this, because the server starts after the constructor.
    """
    setattr(replica_module, add_port_to_grpc_server.__name__, _on_node_address)


def limit_connections() -> None:
    """Limit the buffers and the websockets of the HTTP server of this process's replica.

    A message of more than 64 KiB closes a websocket with the code 1009. Messages are not
    compressed, because a short message could otherwise be decompressed to the largest size.

    The replica's constructor must call this, like `listen_on_node_address`.
    """

    async def start(*args: Any, **kwargs: Any) -> Any:
        task, server = await start_asgi_http_server(*args, **kwargs)
        # The server reads its configuration when the task begins.
        server.config.http = _Http
        server.config.ws = _WebSocket
        server.config.ws_max_size = _MAX_MESSAGE_BYTES
        server.config.ws_per_message_deflate = False
        return task, server

    setattr(replica_module, start_asgi_http_server.__name__, start)


class _Http(HttpToolsProtocol):
    """An HTTP connection with a small buffer for answers in the kernel."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REPLICA_BUFFER_BYTES)
        super().connection_made(transport)


class _WebSocket(WebSocketsSansIOProtocol):
    """A websocket that is closed with the code 1008 if the client sends too much in a short time.

    All frames are counted, also pings, pongs and fragments of messages.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frames = 0
        self._bytes = 0
        self._period_ends_at = 0.0
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self.loop.time() >= self._period_ends_at:
            self._period_ends_at = self.loop.time() + _PERIOD_S
            self._frames = self._bytes = 0
        for at in range(0, len(data), _PART_BYTES):
            if self._is_refused:
                return
            part = data[at : at + _PART_BYTES]
            self._bytes += len(part)
            super().data_received(part)

    def handle_events(self) -> None:
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # Uvicorn does not send the answer to a request that the parser refuses, for example
            # because a line is too long.
            self._end()
            self.transport.close()
            return
        self._frames += len(self.conn.events)
        if self._frames > _MAX_FRAMES or self._bytes > _MAX_BYTES:
            self.conn.fail(CloseCode.POLICY_VIOLATION, "too many frames or bytes")
            self._end()
            # If the socket were closed now, unread data would reset the connection, and the client
            # might not receive the code. Data that still arrives is dropped until the timer ends.
            self.transport.write_eof()
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
            return
        super().handle_events()

    def _end(self) -> None:
        """Send what the parser has to send, and tell the application that the client has gone."""
        self._is_refused = self.disconnected = self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.ABNORMAL_CLOSURE})
        self.transport.write(b"".join(self.conn.data_to_send()))


def _on_node_address(server: Any, address: str) -> Any:
    port = address.rpartition(":")[2]
    return add_port_to_grpc_server(server, f"{ray.util.get_node_ip_address()}:{port}")
