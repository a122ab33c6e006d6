"""A whole stream as bytes, taken while it is in use, and put back (JetStream's own snapshots).

Sequences stay. Consumers are not part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from typing import Any

from events.bus.bus import Bus
from events.bus.puller import Feed
from events.errors import LogUnavailable

_API = "$JS.API.STREAM"
_CHUNK_BYTES = 128 * 1024
_CHUNK_TIMEOUT_S = 30.0
"""Between two parts. The server prepares a large stream before the first one."""


@asynccontextmanager
async def snapshot(
    bus: Bus, stream: str
) -> AsyncGenerator[tuple[dict[str, Any], AsyncGenerator[bytes]]]:
    """What the server says of the stream, and its parts in order. Raises LogUnavailable."""
    inbox = bus.new_inbox()
    async with bus.subscribe(inbox) as parts:
        question = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": _CHUNK_BYTES}
        answer = await bus.ask(f"{_API}.SNAPSHOT.{stream}", question)
        description = {name: answer[name] for name in ("config", "state")}
        yield description, _parts(bus, parts)


async def _parts(bus: Bus, parts: Feed) -> AsyncGenerator[bytes]:
    while True:
        try:
            async with asyncio.timeout(_CHUNK_TIMEOUT_S):
                part = await parts.get()
        except TimeoutError as error:
            raise LogUnavailable("The snapshot stopped before its end.") from error
        if not part.data:
            return
        yield part.data
        if part.ack_subject:  # the server sends so many parts ahead
            await bus.publish(part.ack_subject, b"")


async def restore(
    bus: Bus, stream: str, description: dict[str, Any], parts: AsyncIterable[bytes]
) -> None:
    """Make the stream anew from its snapshot. Raises LogUnavailable, also where it exists."""
    answer = await bus.ask(f"{_API}.RESTORE.{stream}", description)
    target = str(answer["deliver_subject"])
    async for part in parts:
        await bus.ask(target, part, timeout_s=_CHUNK_TIMEOUT_S)
    await bus.ask(target, b"", timeout_s=_CHUNK_TIMEOUT_S)
