"""Messages as they come from NATS, and how they are pulled from a consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.errors import LogUnavailable

_AT_HAND_TIMEOUT_S = 2.0

DISCONNECTED = (
    nats.errors.ConnectionClosedError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.NoServersError,
    nats.errors.NoRespondersError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,
)
"""Every way in which nats-py says that there is no connection, or nobody behind it."""


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    data: bytes
    sequence: int = 0
    """In its stream; 0 for a message of core NATS."""
    ack_subject: str = ""
    deliveries: int = 0
    consumer_sequence: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Puller:
    """Pulls from one consumer. What arrives late is returned by the next call."""

    def __init__(self, client: Client, stream: str, consumer: str) -> None:
        self._client = client
        self._target = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Any = None

    async def open(self) -> None:
        self._subscription = await self._client.subscribe(self._inbox, cb=self._arrived.put)

    async def close(self) -> None:
        with suppress(*DISCONNECTED, nats.errors.Error):
            await self._subscription.unsubscribe()

    def interrupt(self) -> None:
        """The server lost our request (it was restarted): end the wait for its answer."""
        self._arrived.put_nowait(None)

    async def next(self, *, batch: int, timeout_s: float) -> list[Message]:
        """The next messages, at most `batch`; empty where none came in time.

        Raises LogUnavailable where the consumer is gone or there is no connection.
        """
        if batch > 1 and (
            messages := await self._pull({"batch": batch, "no_wait": True}, batch, 2)
        ):
            return messages
        expires = int(timeout_s * 1e9)
        return await self._pull({"batch": 1, "expires": expires}, 1, timeout_s + 1)

    async def _pull(self, request: dict[str, Any], batch: int, timeout_s: float) -> list[Message]:
        try:
            await self._client.publish(
                self._target, json.dumps(request).encode(), reply=self._inbox
            )
        except (nats.errors.Error, *DISCONNECTED) as error:
            raise LogUnavailable from error
        messages: list[Message] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(messages) < batch:
                    raw = await self._arrived.get()
                    status = _status(raw)
                    if status == "503":
                        raise LogUnavailable("the consumer is gone")
                    if raw is None or status:
                        break
                    messages.append(_acked(raw))
        return messages


def _status(raw: Msg | None) -> str | None:
    return (raw.headers or {}).get("Status") if raw is not None and not raw.data else None


async def collect(answers: asyncio.Queue[Msg], timeout_s: float) -> list[Message]:
    """The messages of a batch answer, up to its closing status or the end of the time."""
    messages: list[Message] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                raw = await answers.get()
                if _status(raw):
                    break
                messages.append(plain(raw))
    return messages


def plain(raw: Msg) -> Message:
    headers = raw.headers or {}
    return Message(
        subject=headers.get("Nats-Subject", raw.subject),
        data=raw.data,
        sequence=int(headers.get("Nats-Sequence", 0)),
        headers=headers,
    )


def _acked(raw: Msg) -> Message:
    metadata = raw.metadata
    return Message(
        subject=raw.subject,
        data=raw.data,
        sequence=metadata.sequence.stream,
        ack_subject=raw.reply,
        deliveries=metadata.num_delivered or 1,
        consumer_sequence=metadata.sequence.consumer,
        headers=raw.headers or {},
    )
