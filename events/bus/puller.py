"""Receives messages from NATS, either from a pull consumer or from a subject of core NATS."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.bus.nats_errors import DISCONNECTED
from events.errors import LogUnavailable

_STANDING_S = 8.0
"""Seconds for which a pull request is valid. Then a new request is made."""
_LATE_S = 2.0
"""The additional seconds after which a pull request without an end counts as lost. The server sends
no end if it loses the leader of the consumer.
"""
_STOP_S = 1.0
"""The largest number of seconds that `stop` waits for messages in transit."""
_REQUEST_OVER = "408"
_SHORT_ACK_FIELDS = 9
"""The number of fields of an ack subject that contains neither domain nor account."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    data: bytes
    sequence: int = 0
    """The sequence in the stream; 0 for a message of core NATS."""
    ack_subject: str = ""
    consumer_sequence: int = 0
    pending: int = 0
    """The number of messages that follow this message in a batch or in its consumer."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Puller:
    """Pulls messages from one consumer."""

    def __init__(self, client: Client, stream: str, consumer: str) -> None:
        self._client = client
        self._target = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Any = None
        self._outstanding = 0
        """The number of messages that the server may still send for the open request."""
        self._request_until = 0.0

    async def open(self) -> None:
        """Subscribe to the inbox of the answers. Raises LogUnavailable."""
        self._subscription = await _subscribe(self._client, self._inbox, self._arrived)

    async def stop(self) -> None:
        """End the request and wait briefly for messages in transit, which `left` returns."""
        await _end_deliveries(self._client, self._subscription)

    async def close(self) -> None:
        await _unsubscribe(self._subscription)

    def left(self) -> list[Message]:
        """Remove and return the messages that arrived and that no `follow` returned."""
        left = [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]
        return [_acked(raw) for raw in left if raw is not None and status_of(raw) is None]

    def interrupt(self) -> None:
        """Make `follow` raise LogUnavailable, because its request may be lost."""
        self._arrived.put_nowait(None)

    async def follow(self, *, batch: int, timeout_s: float) -> list[Message]:
        """Return the messages that have arrived, or wait for the next messages.

        The result is empty if no message came in time. A request to the server stays open between
        calls, for at most `batch` messages.

        Raises LogUnavailable if the consumer does not exist any more, the request was lost, or the
        connection has changed. Messages in transit may then be lost or late, so the caller must
        continue with another puller.
        """
        messages: list[Message] = []
        give_up_at = time.monotonic() + timeout_s
        while not messages:
            await self._ensure_request(batch)
            wait_until = min(give_up_at, self._request_until)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_until - time.monotonic()):
                    self._take(await self._arrived.get(), messages)
            if time.monotonic() >= give_up_at:
                break
        try:
            while not self._arrived.empty():
                self._take(self._arrived.get_nowait(), messages)
        except LogUnavailable:
            if not messages:
                raise
            self.interrupt()
        return messages

    async def _ensure_request(self, batch: int) -> None:
        now = time.monotonic()
        if self._outstanding > 0 and self._arrived.empty() and now >= self._request_until:
            self._outstanding = 0
            raise LogUnavailable("a request was lost")
        if self._outstanding <= 0:
            await self._ask({"batch": batch, "expires": int(_STANDING_S * 1e9)})
            self._outstanding, self._request_until = batch, now + _STANDING_S + _LATE_S

    def _take(self, raw: Msg | None, messages: list[Message]) -> None:
        """Add a message to `messages`, or note the end of the request. Raises LogUnavailable."""
        status = status_of(raw)
        if raw is None or status not in {None, _REQUEST_OVER}:
            self._outstanding = 0
            raise LogUnavailable("the consumer or the connection is gone")
        if status is None:
            self._outstanding -= 1
            messages.append(_acked(raw))
        else:
            self._outstanding = 0

    async def _ask(self, request: dict[str, Any]) -> None:
        try:
            await self._client.publish(
                self._target, json.dumps(request).encode(), reply=self._inbox
            )
        except (nats.errors.Error, *DISCONNECTED) as error:
            raise LogUnavailable from error


class Feed:
    """The messages that are published on one subject of core NATS.

    The feed ends when its connection is lost.
    """

    def __init__(self, client: Client, subject: str) -> None:
        self.subject = subject
        self._client = client
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Any = None

    async def open(self) -> None:
        """Subscribe to the subject. Raises LogUnavailable."""
        self._subscription = await _subscribe(self._client, self.subject, self._arrived)

    async def close(self) -> None:
        if self._subscription is not None:
            await _unsubscribe(self._subscription)

    def end(self) -> None:
        """Make `get` raise after the last message."""
        self._arrived.put_nowait(None)

    async def get(self) -> Message:
        """Wait for the next message. Raises LogUnavailable if the feed has ended."""
        raw = await self._arrived.get()
        if raw is None:
            self.end()
            raise LogUnavailable
        return _plain(raw)


async def collect(answers: Feed, timeout_s: float) -> list[Message]:
    """Return the messages of a batch request until the batch ends or the time-out passes.

    Raises LogUnavailable if the connection is closed before.
    """
    messages: list[Message] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not status_of(message := await answers.get()):
                messages.append(message)
    return messages


async def collect_all(answers: Feed, count: int, timeout_s: float) -> list[Message]:
    """Return the messages of `count` batch requests, after all batches have ended.

    Raises LogUnavailable if a batch does not end in time, if the connection is closed, or if no
    server answers for the stream.
    """
    messages: list[Message] = []
    try:
        async with asyncio.timeout(timeout_s):
            while count:
                match status_of(message := await answers.get()):
                    case None:
                        messages.append(message)
                    case "204" | "404":  # The batch has ended, or it is empty.
                        count -= 1
                    case status:
                        raise LogUnavailable(f"The event log answered {status}.")
    except TimeoutError as error:
        raise LogUnavailable("the log did not answer in time") from error
    return messages


async def _subscribe(client: Client, subject: str, arrived: asyncio.Queue[Msg | None]) -> Any:
    """Subscribe without waiting for an answer.

    The server handles the commands of one connection in order. Later requests on this connection
    are therefore handled after the subscription, and a flush is not needed. A flush is dangerous:
    if it times out or is cancelled, its late PONG sets a cancelled future, and the error ends the
    read loop of nats-py.
    """
    try:
        return await client.subscribe(subject, cb=arrived.put)
    except (nats.errors.Error, *DISCONNECTED) as error:
        raise LogUnavailable from error


async def _end_deliveries(client: Client, subscription: Any) -> None:
    """End a subscription at the server, and wait up to `_STOP_S` seconds for its last messages.

    nats-py's `unsubscribe` drops messages that arrive later, and its `drain` waits with a flush
    (see `_subscribe`). Therefore only the server is told to unsubscribe. A message that is then
    sent to an inbox of this client arrives after all messages of the subscription. Messages that
    the server gets later from other servers of the cluster are lost.
    """
    if not client.is_connected:
        return
    answer = Feed(client, client.new_inbox())
    try:
        with suppress(TimeoutError, LogUnavailable, nats.errors.Error, *DISCONNECTED):
            async with asyncio.timeout(_STOP_S):
                await client._send_unsubscribe(subscription._id)
                await answer.open()
                await client.publish(answer.subject, b"")
                await answer.get()
    finally:
        await answer.close()


async def _unsubscribe(subscription: Any) -> None:
    with suppress(nats.errors.Error, *DISCONNECTED):
        await subscription.unsubscribe()


def stored_at(ack_subject: str) -> datetime:
    """Return the time at which the message was stored, by the server's clock (NATS ADR-15)."""
    fields = ack_subject.split(".")
    nanoseconds = int(fields[7 if len(fields) == _SHORT_ACK_FIELDS else 9])
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def status_of(raw: Msg | Message | None) -> str | None:
    """Return the status code of a message without content; None for an ordinary message."""
    return (raw.headers or {}).get("Status") if raw is not None and not raw.data else None


def _plain(raw: Msg) -> Message:
    headers = raw.headers or {}
    return Message(
        subject=headers.get("Nats-Subject", raw.subject),
        data=raw.data,
        sequence=int(headers.get("Nats-Sequence", 0)),
        ack_subject=raw.reply,
        pending=int(headers.get("Nats-Num-Pending", 0)),
        headers=headers,
    )


def _acked(raw: Msg) -> Message:
    metadata = raw.metadata
    return Message(
        subject=raw.subject,
        data=raw.data,
        sequence=metadata.sequence.stream,
        ack_subject=raw.reply,
        consumer_sequence=metadata.sequence.consumer,
        pending=metadata.num_pending,
        headers=raw.headers or {},
    )
