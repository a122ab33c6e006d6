"""A receiver of callbacks on a real socket, which answers as a test tells it to, or not at all."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from types import TracebackType
from typing import Any

from actors.callbacks.sender import Sender
from events.callback_address import AddressRule, Resolve

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

DEADLINE_S = 60.0

LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])

_CERTIFICATE = Path(__file__).with_name("receiver.pem")
"""A certificate for `receiver.test` with its key; no authority signed it."""


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_CERTIFICATE)
    return context


def client_tls() -> ssl.SSLContext:
    """Trusts the certificate of `server_tls`."""
    return ssl.create_default_context(cafile=str(_CERTIFICATE))


def resolving_to(*answers: Sequence[str]) -> Resolve:
    """A name server that gives these answers in order and then repeats the last one."""
    left = list(answers)

    async def resolve(_host: str) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


@asynccontextmanager
async def sending(
    rule: AddressRule = LOOPBACK,
    *,
    answers: Sequence[Sequence[str]] = (("127.0.0.1",),),
    **options: Any,
) -> AsyncGenerator[Sender]:
    """A sender that knows the certificate, and for which every name has these answers."""
    sender = Sender(rule, resolve=resolving_to(*answers), ssl_context=client_tls(), **options)
    try:
        yield sender
    finally:
        await sender.close()


@dataclass(frozen=True, slots=True)
class Received:
    request_line: str
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes


@dataclass
class Receiver:
    """A receiver that gives its `answers` in order and then repeats the last one."""

    answers: list[Answer] = field(default_factory=lambda: [status(200)])
    ssl_context: ssl.SSLContext | None = None
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def __aenter__(self) -> Receiver:
        self._changed = asyncio.Condition()
        self._server = await asyncio.start_server(
            self._serve,
            "127.0.0.1",
            0,
            backlog=1024,
            ssl=self.ssl_context,
            # A sender may leave without closing TLS first; asyncio would wait 30 s for that.
            ssl_shutdown_timeout=0.2 if self.ssl_context else None,
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def wait_for(self, count: int, *, timeout_s: float = DEADLINE_S) -> list[Received]:
        """Wait until `count` requests have been received. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def wait_for_open(self, most: int, *, timeout_s: float = DEADLINE_S) -> None:
        """Wait until at most `most` connections are open. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: len(self._tasks) <= most)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    await self._answer_one(reader, writer)
        finally:
            self._tasks.discard(task)
            async with self._changed:
                self._changed.notify_all()
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request_line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        answer = self.answers[min(len(self.received), len(self.answers) - 1)]
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        async with self._changed:
            self.received.append(Received(request_line, headers, body))
            self._changed.notify_all()
        try:
            await answer(writer)
        finally:
            self.at_once -= 1


def status(
    code: int, *, headers: str = "", after_s: float = 0.0, after: asyncio.Event | None = None
) -> Answer:
    """`headers`: lines that each end with CRLF."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after_s)
        if after is not None:
            await after.wait()
        writer.write(f"HTTP/1.1 {code} X\r\n{headers}Content-Length: 2\r\n\r\nok".encode())
        await writer.drain()

    return answer


async def hang(writer: asyncio.StreamWriter) -> None:
    """Accept the request and never answer."""
    await asyncio.Event().wait()


async def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection instead of answering."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def drip_headers(writer: asyncio.StreamWriter) -> None:
    """Send one byte of headers at a time, without end."""
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def drip_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


@dataclass
class Large:
    """An answer 200 with `size_bytes`; `written_bytes` is how much of it the sender accepted."""

    size_bytes: int
    written_bytes: int = 0

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {self.size_bytes}\r\n\r\n".encode())
        chunk = bytes(64 * 1024)
        while self.written_bytes < self.size_bytes:
            writer.write(chunk)
            await writer.drain()
            self.written_bytes += len(chunk)


async def flood_headers(writer: asyncio.StreamWriter) -> None:
    """Send headers without end, as fast as they are accepted."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Header: " + b"x" * 4000 + b"\r\n")
        await writer.drain()


async def flood_interim(writer: asyncio.StreamWriter) -> None:
    """Send interim answers without end."""
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nX-Header: " + b"x" * 1000 + b"\r\n\r\n")
        await writer.drain()
