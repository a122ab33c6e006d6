"""Clients that cost little: one sends the same bytes again and again and counts the answers.

httpx would be the bottleneck. What `burst` reaches against a server that does nothing but answer
(`bare_server`) is its limit, and belongs beside every figure taken with it. `Connections` makes
calls of any kind, as many at the same time as are wanted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + b'{"status":"ok"}'
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_START_TIMEOUT_S = 20.0
_REUSED_FOR_S = 2.0
"""A server closes connections that rest: one that has rested for longer is not used again."""


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


@dataclass(frozen=True, slots=True)
class Burst:
    answers: int
    time_s: float

    @property
    def per_s(self) -> float:
        return self.answers / self.time_s


async def burst(
    port: int, message: bytes, *, status: int, connections: int, time_s: float, most: int
) -> Burst:
    """Calls over `time_s`, or until `most` are answered. Raises WrongAnswer."""
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
    return Burst(answers, took_s)


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


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    """By their names in small letters."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float = 0.0

    async def call(self, message: bytes) -> Answer:
        self.writer.write(message)
        status, *lines = (await self.reader.readuntil(_HEAD_END)).decode().splitlines()
        pairs = (line.split(":", 1) for line in lines if line)
        headers = {name.lower(): value.strip() for name, value in pairs}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        self.used_at = time.monotonic()
        return Answer(int(status.split()[1]), headers, body)


class Connections:
    """Connections to one server, kept open: a call takes one that rests, or opens another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._resting: list[_Connection] = []

    async def call(self, message: bytes) -> Answer:
        """Raises OSError, IncompleteReadError."""
        connection = await self._take()
        try:
            answer = await connection.call(message)
        except BaseException:
            connection.writer.close()
            raise
        if answer.headers.get("connection") == "close":  # as HAProxy says when it is reloaded
            connection.writer.close()
        else:
            self._resting.append(connection)
        return answer

    async def _take(self) -> _Connection:
        """The one that was used last."""
        while self._resting:
            connection = self._resting.pop()
            if time.monotonic() - connection.used_at < _REUSED_FOR_S:
                return connection
            connection.writer.close()
        return _Connection(*await asyncio.open_connection("127.0.0.1", self._port))

    def close(self) -> None:
        while self._resting:
            self._resting.pop().writer.close()


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
