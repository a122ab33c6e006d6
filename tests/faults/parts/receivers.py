"""Receivers of callbacks, good and bad ones, and a listener at a forbidden address."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from examples.service import free_port
from tests.faults.checker.record import Record
from tests.faults.parts.inside.sitecustomize import FORBIDDEN, REBOUND

GOOD, SLOW, FLAKY, CLOSING, BROKEN = "good", "slow", "flaky", "closing", "broken"
REDIRECTING, DEAD, REBINDING = "redirecting", "dead", "rebinding"
BEHAVIOURS = (GOOD, GOOD, GOOD, SLOW, FLAKY, CLOSING, BROKEN, REDIRECTING, DEAD, REBINDING)
"""The receivers among which callers choose; each is a path of the receiver, or another address."""
_LONGEST_REQUEST_S = 30.0


class Receivers:
    """One server on 127.0.0.1 for all behaviours, and a forbidden one on 127.0.0.66."""

    def __init__(self, record: Record, *, seed: int) -> None:
        self._record = record
        self._chance = random.Random(f"receivers {seed}")
        self._webhooks: dict[str, Webhook] = {}
        self._dead_port = free_port()
        self.port = 0
        self.forbidden_port = 0

    def accept_secret(self, owner: str, secret: str) -> None:
        self._webhooks[owner] = Webhook(secret)

    def url(self, owner: str, behaviour: str) -> str:
        match behaviour:
            case "dead":
                return f"http://127.0.0.1:{self._dead_port}/{owner}/{behaviour}"
            case "rebinding":
                return f"http://a{REBOUND}:{self.forbidden_port}/{owner}/{behaviour}"
            case _:
                return f"http://127.0.0.1:{self.port}/{owner}/{behaviour}"

    @property
    def forbidden_url(self) -> str:
        return f"http://{FORBIDDEN}:{self.forbidden_port}/forbidden"

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            good = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            stack.callback(good.close)
            forbidden = await asyncio.start_server(self._note_forbidden, FORBIDDEN, 0)
            stack.callback(forbidden.close)
            self.port, self.forbidden_port = (
                each.sockets[0].getsockname()[1] for each in (good, forbidden)
            )
            yield

    async def _note_forbidden(
        self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._record.add("forbidden_dial", address=f"{FORBIDDEN}:{self.forbidden_port}")
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            async with asyncio.timeout(_LONGEST_REQUEST_S):
                await self._answer(reader, writer)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split()[1]
        headers = dict(_header(line) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        _, owner, behaviour = path.split("/")
        answered = await self._status(behaviour)
        self._record.add(
            "call",
            job_id=json.loads(body)["request_id"],
            webhook_id=headers.get("webhook-id", ""),
            is_signed=self._is_signed(owner, body, headers),
            answered=answered,
        )
        if answered is not None:
            location = f"Location: {self.forbidden_url}\r\n" if answered == 302 else ""
            text = (
                f"HTTP/1.1 {answered} x\r\n{location}Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
            writer.write(text.encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _status(self, behaviour: str) -> int | None:
        """Return the status for a behaviour; None: close the connection without an answer."""
        lot = self._chance.random()
        match behaviour:
            case "slow":
                await asyncio.sleep(3 * lot)
            case "flaky" if lot < 0.6:
                return 500
            case "closing" if lot < 0.6:
                return None
            case "broken":
                return 503
            case "redirecting":
                return 302
        return 200

    def _is_signed(self, owner: str, body: bytes, headers: Mapping[str, str]) -> bool:
        try:
            self._webhooks[owner].verify(body, dict(headers))
        except (KeyError, WebhookVerificationError):
            return False
        return True


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
