"""What the service does on NATS: publish and store, read, pull, acknowledge.

`Bus` turns nats-py's errors into ours and its messages into `Message`; the log and the queues
stand on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors

from events.bus.connection import CALL_TIMEOUT_S, Connection, keeping_cancellation
from events.bus.errors import (
    DISCONNECTED,
    FULL,
    WRONG_LAST_SEQUENCE,
    NoAnswer,
    WrongLastSequence,
    code_of,
)
from events.bus.puller import Feed, Message, Puller, collect, collect_all
from events.bus.streams import ConsumerSpec
from events.errors import LogFull, LogUnavailable

EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
MESSAGE_ID = "Nats-Msg-Id"
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"
_NUM_PENDING = "Nats-Num-Pending"
_STATUS = "Status"

_BATCH = 1000
"""The most messages of one answer."""
_BATCHES_AT_ONCE = 250
"""How many answers may be on their way together."""
_QUICK_TIMEOUT_S = 1.0
"""Time-out of optional look-ups during a request."""


class Bus(Connection):
    """See `Connection`."""

    # Streams.

    async def fill(self, stream: str) -> float:
        """How full the stream is, 0..1 of its `max_bytes`. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream), timeout_s=_QUICK_TIMEOUT_S)
        limit = info.config.max_bytes or -1
        return info.state.bytes / limit if limit > 0 else 0.0

    async def pending(
        self, stream: str, subjects: str, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, int]:
        """Messages per subject. Raises LogUnavailable."""
        call = self._js.stream_info(stream, subjects_filter=subjects)
        info = await self.call(call, timeout_s=timeout_s)
        return dict(info.state.subjects or {})

    async def purge(
        self, stream: str, subject: str, *, keep: int = 0, upto: int | None = None
    ) -> None:
        """Remove all messages of the subject but the last `keep`, or those behind `upto`.

        Raises LogUnavailable.
        """
        seq = None if upto is None else upto + 1
        await self.call(self._js.purge_stream(stream, seq=seq, subject=subject, keep=keep or None))

    # Publishing.

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to a stream and wait until it is on disk; its sequence.

        Raises LogUnavailable and LogFull (nothing was stored), WrongLastSequence, NoAnswer.
        """
        if not self.is_connected:
            raise LogUnavailable
        try:
            with keeping_cancellation():
                ack = await self._js.publish(
                    subject, data, timeout=timeout_s, headers=dict(headers or {})
                )
        except OSError as error:  # a time-out, or a write that failed on the way
            raise NoAnswer from error
        except (nats.js.errors.APIError, *DISCONNECTED) as error:
            if code_of(error) in WRONG_LAST_SEQUENCE:
                raise WrongLastSequence from error
            if code_of(error) in FULL:
                raise LogFull from error
            raise self.unavailable(error) from error
        return ack.seq

    async def store_first(self, subject: str, data: bytes, *, timeout_s: float = 5) -> bool:
        """Publish to a subject that holds nothing yet; False if it holds something.

        Raises LogUnavailable, LogFull, NoAnswer.
        """
        try:
            await self.store(
                subject, data, timeout_s=timeout_s, headers={EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
            )
        except WrongLastSequence:
            return False
        return True

    async def publish(self, subject: str, data: bytes) -> None:
        """Core NATS: at most once, dropped while disconnected."""
        with suppress(*DISCONNECTED, nats.errors.Error):
            await self._client.publish(subject, data)

    # Reading.

    async def last(self, stream: str, subject: str) -> Message | None:
        """The subject's last message, as the stream's leader has it. Raises LogUnavailable."""
        try:
            raw = await self.call(self._js.get_last_msg(stream, subject))
        except nats.js.errors.APIError:
            return None
        return Message(subject=subject, data=raw.data or b"", sequence=raw.seq or 0)

    async def batch(
        self, stream: str, subject: str, *, after: int, count: int, timeout_s: float
    ) -> list[Message]:
        """Up to `count` messages of one subject after `after` (ADR-31 batch get, any replica).

        Raises LogUnavailable. Fewer than `count` if a replica lags or the time ran out.
        """
        request = {"seq": after + 1, "next_by_subj": subject, "batch": count}
        async with self._direct_get(stream, request) as answers:
            return await collect(answers, timeout_s)

    async def count(self, stream: str, subjects: str, *, timeout_s: float) -> int:
        """How many messages a wildcard has, told beside the first of them by any replica.

        Raises LogUnavailable.
        """
        request = {"seq": 1, "next_by_subj": subjects, "batch": 1}
        async with self._direct_get(stream, request) as answers:
            try:
                async with asyncio.timeout(timeout_s):
                    first = await answers.get()
            except TimeoutError as error:
                raise LogUnavailable from error
        match first.headers.get(_STATUS):
            case None:
                return int(first.headers[_NUM_PENDING]) + 1
            case "404":
                return 0
            case status:  # 503: nobody answers for this stream
                self._dirty.set()
                raise LogUnavailable(f"The event log answered {status}.")

    @asynccontextmanager
    async def _direct_get(self, stream: str, request: Mapping[str, Any]) -> AsyncGenerator[Feed]:
        """What answers a direct get (ADR-31). Raises LogUnavailable."""
        inbox = self._client.new_inbox()
        target = f"$JS.API.DIRECT.GET.{stream}"
        async with self.subscribe(inbox) as answers:
            try:
                await self._client.publish(target, json.dumps(request).encode(), reply=inbox)
            except (nats.errors.Error, *DISCONNECTED) as error:
                raise LogUnavailable from error
            yield answers

    async def batches(
        self, stream: str, subjects: Sequence[str], *, timeout_s: float
    ) -> dict[str, list[Message]]:
        """All messages of each of these subjects, as one replica has them; many at a time.

        A subject without messages is left out. Raises LogUnavailable, also where the time ran out.
        """
        found: dict[str, list[Message]] = {}
        waiting = dict.fromkeys(subjects, 0)
        """The sequence after which there may be more."""
        inbox = self._client.new_inbox()
        async with self.subscribe(f"{inbox}.*") as answers:
            while waiting:
                some = list(islice(waiting.items(), _BATCHES_AT_ONCE))
                for number, (subject, after) in enumerate(some):
                    request = {"seq": after + 1, "next_by_subj": subject, "batch": _BATCH}
                    reply = f"{inbox}.{number}"
                    await self._ask(f"$JS.API.DIRECT.GET.{stream}", request, reply)
                for message in await collect_all(answers, len(some), timeout_s):
                    found.setdefault(message.subject, []).append(message)
                for subject, _ in some:
                    del waiting[subject]
                    if (messages := found.get(subject)) and messages[-1].pending:
                        waiting[subject] = messages[-1].sequence
        return found

    async def _ask(self, target: str, request: dict[str, Any], reply: str) -> None:
        try:
            await self._client.publish(target, json.dumps(request).encode(), reply=reply)
        except (nats.errors.Error, *DISCONNECTED) as error:
            raise LogUnavailable from error

    @asynccontextmanager
    async def subscribe(self, subject: str) -> AsyncGenerator[Feed]:
        """What is heard on a subject of core NATS. Raises LogUnavailable.

        What is read on this bus inside the context is read after the subscription was made.
        """
        if not self.is_connected:
            raise LogUnavailable
        feed = Feed(self._client, subject)
        self._feeds.add(feed)
        try:
            await feed.open()
            yield feed
        finally:
            self._feeds.discard(feed)
            await feed.close()

    # Consumers.

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Raises LogUnavailable."""
        config = nats.js.api.ConsumerConfig(
            durable_name=spec.name,
            filter_subject=spec.filter_subject,
            ack_policy=nats.js.api.AckPolicy.EXPLICIT,
            ack_wait=spec.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=spec.max_ack_pending,
            max_waiting=64,
        )
        await self.call(self._js.add_consumer(spec.stream, config))

    async def add_follower(self, stream: str, *, after: int) -> str:
        """An ephemeral consumer that needs no acks, from after `after` on; its name."""
        config = nats.js.api.ConsumerConfig(
            deliver_policy=nats.js.api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=nats.js.api.AckPolicy.NONE,
            inactive_threshold=60,
            mem_storage=True,
            num_replicas=1,
        )
        info = await self.call(self._js.add_consumer(stream, config))
        return str(info.name)

    @asynccontextmanager
    async def puller(self, stream: str, consumer: str) -> AsyncGenerator[Puller]:
        """Raises LogUnavailable."""
        if not self.is_connected:
            raise LogUnavailable
        puller = Puller(self._client, stream, consumer)
        await puller.open()
        self._pullers.add(puller)
        try:
            yield puller
        finally:
            self._pullers.discard(puller)
            await puller.close()

    async def ack(self, ack_subject: str, *, timeout_s: float = 5) -> bool:
        """Acknowledge and wait until the server has it; False if it did not say so in time."""
        if not self.is_connected:
            return False
        try:
            with keeping_cancellation():
                await self._client.request(ack_subject, b"+ACK", timeout=timeout_s)
        except (TimeoutError, nats.errors.Error, *DISCONNECTED):
            return False
        return True

    async def renew(self, ack_subject: str) -> None:
        """Start the entry's ack wait anew."""
        await self.publish(ack_subject, b"+WPI")

    async def nak(self, ack_subject: str) -> None:
        """Give the entry back for delivery at once."""
        await self.publish(ack_subject, b"-NAK")
