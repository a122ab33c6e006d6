"""A client that costs little: it sends the same bytes again and again, and counts the answers.

httpx would be the bottleneck. What this one reaches against a server that does nothing but answer
(`bare_server`) is its limit, and belongs beside every figure taken with it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + b'{"status":"ok"}'
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_START_TIMEOUT_S = 20.0


class WrongAnswer(Exception):
    """The server said something else, or nothing."""


def request(method: str, path: str, *, key: str = "", body: Any = None) -> bytes:
    """A whole request, ready to be sent on a connection that stays open."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def rate(
    port: int, message: bytes, *, status: int, connections: int, time_s: float, most: int
) -> float:
    """Answers per second, over `time_s` or `most` answers. Raises WrongAnswer."""
    clients = [Client(message, status, most // connections) for _ in range(connections)]
    for client in clients:
        await client.connect(port)
    began = time.perf_counter()
    for client in clients:
        client.send()
    await asyncio.wait([client.end for client in clients], timeout=time_s)
    answers = sum(client.answers for client in clients)
    took_s = time.perf_counter() - began
    for client in clients:
        client.finish()
    failures = await asyncio.gather(*(client.end for client in clients), return_exceptions=True)
    for failure in filter(None, failures):
        raise failure
    return answers / took_s


class Client(asyncio.Protocol):
    """One connection: the next request leaves as soon as the last is answered."""

    def __init__(self, message: bytes, status: int, most: int) -> None:
        self.answers = 0
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._message = message
        self._expected = f"HTTP/1.1 {status} ".encode()
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._most = most

    async def connect(self, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._message)

    def finish(self) -> None:
        """The connection closes with the answer to the request under way."""
        self._most = 0

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_size = self._received.find(_HEAD_END)
        if head_size < 0 or len(self._received) < head_size + 4 + self._body_size(head_size):
            return
        if not self._received.startswith(self._expected):
            self._fail(self._received.decode(errors="replace"))
            return
        self._received = b""
        self.answers += 1
        if self.answers < self._most:
            self.send()
        elif self._transport is not None:
            self.end.set_result(None)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}")

    def _body_size(self, head_size: int) -> int:
        head = self._received[:head_size].lower()
        start = head.index(_LENGTH) + len(_LENGTH)
        return int(head[start:].split(b"\r\n", 1)[0])

    def _fail(self, reason: str) -> None:
        if not self.end.done():
            self.end.set_exception(WrongAnswer(reason))


@asynccontextmanager
async def bare_server() -> AsyncGenerator[int]:
    """The port of a server, in a process of its own, that answers without reading."""
    command = (sys.executable, "-m", __name__)
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        yield int(await asyncio.wait_for(server.stdout.readline(), _START_TIMEOUT_S))
    finally:
        server.terminate()
        await server.wait()


class _Answering(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - the protocol's signature
        self._transport.write(_ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
