"""Cheap HTTP clients: `burst` sends the same bytes again and again and counts the answers.

A client with httpx would be slower than the service. The rate of `burst` with a server that only
answers (`bare_server`) is the limit of `burst`, and reports show this limit beside the figures.
`Connections` makes any calls, also concurrently.
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
"""The largest time in seconds for which a connection is idle before it is used again. The server
closes connections that are idle for longer.
"""


class WrongAnswer(Exception):
    """The server gave another answer than the expected one, or no answer."""


def request(method: str, path: str, *, key: str = "", body: Any = None) -> bytes:
    """Return the bytes of a request for a connection that stays open."""
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
    """Send requests for `time_s` seconds, or until about `most` answers have arrived. Raises
    WrongAnswer.
    """
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
    """Sends requests on one connection. Each request is sent after the answer to the previous
    request.
    """

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
        """Close the connection after the answer to the current request."""
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
    """The headers by their names in lower case."""
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
    """Connections to one server that stay open. A call uses an idle connection or opens another
    connection.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._resting: list[_Connection] = []

    async def call(self, message: bytes) -> Answer:
        """Send a request and return the answer. Raises OSError, IncompleteReadError."""
        connection = await self._take()
        try:
            answer = await connection.call(message)
        except BaseException:
            connection.writer.close()
            raise
        if answer.headers.get("connection") == "close":  # HAProxy sends this during a reload
            connection.writer.close()
        else:
            self._resting.append(connection)
        return answer

    async def _take(self) -> _Connection:
        """Return the most recently used idle connection, or a new connection."""
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
    """Run a server process that answers all received data at once, until the end of the context.
    Yields its port.
    """
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
