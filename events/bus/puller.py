"""Messages as they come from NATS: pulled from a consumer, or heard on a subject."""

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

from events.bus.errors import DISCONNECTED
from events.errors import LogUnavailable

_STANDING_S = 8.0
"""How long a standing request holds; then it is made again."""
_LATE_S = 2.0
"""How late its end may come: it does not where the leader of the consumer is lost."""
_STOP_S = 1.0
"""How long a reader that stops waits for what is on its way; the server may be gone."""
_REQUEST_OVER = "408"
_SHORT_ACK_FIELDS = 9
"""Of an ack subject that names neither domain nor account."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    data: bytes
    sequence: int = 0
    """In its stream; 0 for a message of core NATS."""
    ack_subject: str = ""
    deliveries: int = 0
    consumer_sequence: int = 0
    pending: int = 0
    """How many more there are behind it, in the answer to a batch request or of its consumer."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Puller:
    """Pulls from one consumer. What arrives late is returned by the next call."""

    def __init__(self, client: Client, stream: str, consumer: str) -> None:
        self._client = client
        self._target = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Any = None
        self._owed = 0
        """How many messages the standing request may still bring."""
        self._owed_until = 0.0

    async def open(self) -> None:
        """Raises LogUnavailable."""
        self._subscription = await _subscribe(self._client, self._inbox, self._arrived)

    async def stop(self) -> None:
        """Ask for no more, and wait a moment for what is on its way: it is in `left` then."""
        await _end_deliveries(self._client, self._subscription)

    async def close(self) -> None:
        await _unsubscribe(self._subscription)

    def left(self) -> list[Message]:
        """What has arrived and was not taken."""
        left = [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]
        return [_acked(raw) for raw in left if raw is not None and status_of(raw) is None]

    def interrupt(self) -> None:
        """The server lost our request (the connection is another): end the wait for its answer."""
        self._arrived.put_nowait(None)

    async def follow(self, *, batch: int, timeout_s: float) -> list[Message]:
        """What has come by now, else the next messages to come; empty where none came in time.

        The request stands while nobody waits, so what is stored meanwhile needs no other one. At
        most `batch` messages come ahead. Raises LogUnavailable where the consumer is gone, the
        request was lost, or the connection is another: what was on its way may be lost or late, so
        another puller is to go on.
        """
        messages: list[Message] = []
        give_up_at = time.monotonic() + timeout_s
        while not messages:
            await self._stand(batch)
            wait_until = min(give_up_at, self._owed_until)
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
            self.interrupt()  # for the next call
        return messages

    async def _stand(self, batch: int) -> None:
        now = time.monotonic()
        if self._owed > 0 and self._arrived.empty() and now >= self._owed_until:
            self._owed = 0
            raise LogUnavailable("a request was lost")
        if self._owed <= 0:
            await self._ask({"batch": batch, "expires": int(_STANDING_S * 1e9)})
            self._owed, self._owed_until = batch, now + _STANDING_S + _LATE_S

    def _take(self, raw: Msg | None, messages: list[Message]) -> None:
        """Raises LogUnavailable."""
        status = status_of(raw)
        if raw is None or status not in {None, _REQUEST_OVER}:
            self._owed = 0
            raise LogUnavailable("the consumer or the connection is gone")
        if status is None:
            self._owed -= 1
            messages.append(_acked(raw))
        else:
            self._owed = 0

    async def _ask(self, request: dict[str, Any]) -> None:
        try:
            await self._client.publish(
                self._target, json.dumps(request).encode(), reply=self._inbox
            )
        except (nats.errors.Error, *DISCONNECTED) as error:
            raise LogUnavailable from error


class Feed:
    """What is heard on one subject of core NATS. Ends with the connection it was opened on."""

    def __init__(self, client: Client, subject: str) -> None:
        self.subject = subject
        self._client = client
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Any = None

    async def open(self) -> None:
        """Raises LogUnavailable."""
        self._subscription = await _subscribe(self._client, self.subject, self._arrived)

    async def close(self) -> None:
        if self._subscription is not None:
            await _unsubscribe(self._subscription)

    def end(self) -> None:
        """Make `get` raise after the last message."""
        self._arrived.put_nowait(None)

    async def get(self) -> Message:
        """The next message. Raises LogUnavailable once the feed has ended."""
        raw = await self._arrived.get()
        if raw is None:
            self.end()  # for whoever asks again
            raise LogUnavailable
        return _plain(raw)


async def collect(answers: Feed, timeout_s: float) -> list[Message]:
    """The messages of a batch answer, up to its closing status or the end of the time.

    Raises LogUnavailable where the connection is closed meanwhile.
    """
    messages: list[Message] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not status_of(message := await answers.get()):
                messages.append(message)
    return messages


async def collect_all(answers: Feed, count: int, timeout_s: float) -> list[Message]:
    """The messages of `count` batch answers, whose closing statuses have all come.

    Raises LogUnavailable where they did not come in time, the connection is closed meanwhile, or
    nobody answers for the stream.
    """
    messages: list[Message] = []
    try:
        async with asyncio.timeout(timeout_s):
            while count:
                match status_of(message := await answers.get()):
                    case None:
                        messages.append(message)
                    case "204" | "404":  # the end of a batch; none at all
                        count -= 1
                    case status:
                        raise LogUnavailable(f"The event log answered {status}.")
    except TimeoutError as error:
        raise LogUnavailable("the log did not answer in time") from error
    return messages


async def _subscribe(client: Client, subject: str, arrived: asyncio.Queue[Msg | None]) -> Any:
    """Waits for no answer: the server handles what one connection sends in its order.

    So whatever is requested or published on this connection from now on is handled after the
    subscription. A flush would say no more, and where it runs out of time or is cancelled, the
    late PONG meets a cancelled future and ends nats-py's read loop.
    """
    try:
        return await client.subscribe(subject, cb=arrived.put)
    except (nats.errors.Error, *DISCONNECTED) as error:
        raise LogUnavailable from error


async def _end_deliveries(client: Client, subscription: Any) -> None:
    """Return once all has arrived that the server sends to this subscription, if it answers.

    nats-py drops what comes after `unsubscribe`, and its `drain` waits by a flush (`_subscribe`).
    So the server alone is told first; what it sends after that comes behind all it had sent. What
    another server of a cluster has sent it by then is lost.
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
    """When the message of an ack subject was stored, by the server's clock (ADR-15)."""
    fields = ack_subject.split(".")
    nanoseconds = int(fields[7 if len(fields) == _SHORT_ACK_FIELDS else 9])
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def status_of(raw: Msg | Message | None) -> str | None:
    """What a message without content says in the place of one; None for a message proper."""
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
        deliveries=metadata.num_delivered or 1,
        consumer_sequence=metadata.sequence.consumer,
        pending=metadata.num_pending,
        headers=raw.headers or {},
    )
