"""What the service does on NATS: publish and store, read, pull, acknowledge.

`Bus` turns nats-py's errors into ours and its messages into `Message`; the log and the queues
stand on it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors

from events.bus.connection import keeping_cancellation
from events.bus.errors import (
    DISCONNECTED,
    FULL,
    WRONG_LAST_SEQUENCE,
    NoAnswer,
    WrongLastSequence,
    code_of,
)
from events.bus.puller import Puller
from events.bus.reads import Reads
from events.bus.streams import ConsumerSpec
from events.errors import LogFull, LogUnavailable
from events.log import StreamState

EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_STREAM = "Nats-Expected-Stream"
MESSAGE_ID = "Nats-Msg-Id"
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"

_QUICK_TIMEOUT_S = 1.0
"""Time-out of optional look-ups during a request."""


class Bus(Reads):
    """See `Connection` and `Reads`."""

    # Streams.

    async def fill(self, stream: str) -> float:
        """How full the stream is, 0..1 of its `max_bytes`. Raises LogUnavailable."""
        return (await self.state(stream)).fill

    async def max_bytes(self, stream: str) -> int:
        """How large the stream may become; -1 where it has no limit. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream))
        return info.config.max_bytes or -1

    async def state(self, stream: str) -> StreamState:
        """Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream), timeout_s=_QUICK_TIMEOUT_S)
        return StreamState(
            messages=info.state.messages,
            size_bytes=info.state.bytes,
            max_bytes=info.config.max_bytes or -1,
            last_sequence=info.state.last_seq,
        )

    async def last_sequence(self, stream: str) -> int:
        """0 for a stream that nothing was ever stored in. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream))
        return int(info.state.last_seq)

    async def made_at(self, stream: str) -> datetime:
        """When the stream was made, by the server's clock. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream))
        created: datetime = info.created
        return created

    async def pages(self, stream: str, subjects: str) -> AsyncGenerator[dict[str, int]]:
        """Messages per subject, in pages of 100,000 subjects. Raises LogUnavailable."""
        told, total = 0, 1
        while told < total:
            question = {"subjects_filter": subjects, "offset": told}
            answer = await self.ask(f"$JS.API.STREAM.INFO.{stream}", question)
            if page := answer["state"].get("subjects"):
                yield page
            told, total = told + answer["limit"], answer["total"]

    async def pending(self, stream: str, subjects: str) -> dict[str, int]:
        """Messages per subject, all of them. Raises LogUnavailable."""
        found: dict[str, int] = {}
        async for page in self.pages(stream, subjects):
            found |= page
        return found

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

    # Consumers.

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Raises LogUnavailable."""
        config = nats.js.api.ConsumerConfig(
            durable_name=spec.name,
            **_filter(spec),
            ack_policy=nats.js.api.AckPolicy.EXPLICIT,
            ack_wait=spec.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=spec.max_ack_pending,
            max_waiting=64,
        )
        await self.call(self._js.add_consumer(spec.stream, config))

    async def consumers(self, stream: str) -> list[str]:
        """Names of all consumers of a stream. Raises LogUnavailable."""
        found: list[str] = []
        total = 1
        while len(found) < total:
            subject = f"$JS.API.CONSUMER.NAMES.{stream}"
            answer = await self.ask(subject, {"offset": len(found)})
            names, total = answer.get("consumers") or [], answer["total"]
            if not names:
                break  # some were deleted meanwhile
            found += names
        return found

    async def consumer_subjects(self, stream: str, name: str) -> frozenset[str] | None:
        """What a consumer takes; None if there is none of that name. Raises LogUnavailable."""
        try:
            info = await self.call(self._js.consumer_info(stream, name))
        except nats.js.errors.APIError:
            return None
        one = info.config.filter_subject
        return frozenset([one] if one else info.config.filter_subjects or ())

    async def open_requests(self, stream: str) -> dict[str, int]:
        """How many readers wait for messages of each consumer of a stream, by its name.

        Raises LogUnavailable.
        """
        found: dict[str, int] = {}
        total = 1
        while len(found) < total:
            answer = await self.ask(f"$JS.API.CONSUMER.LIST.{stream}", {"offset": len(found)})
            page, total = answer.get("consumers") or [], answer["total"]
            if not page:
                break  # some were deleted meanwhile
            found |= {each["name"]: each.get("num_waiting", 0) for each in page}
        return found

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Nothing happens if there is none. Raises LogUnavailable."""
        with suppress(nats.js.errors.APIError):
            await self.call(self._js.delete_consumer(stream, name))

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

    async def give_back(self, puller: Puller, *, in_hand: Collection[str] = ()) -> None:
        """What a puller has and nobody has taken, and these, by their ack subjects.

        It is stopped before, or the messages would be sent to it again.
        """
        try:
            await puller.stop()
        finally:
            left = {message.ack_subject for message in puller.left()}
            for ack_subject in left.union(in_hand):
                await self.nak(ack_subject)

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

    async def nak(self, ack_subject: str, *, after_s: float = 0.0) -> None:
        """Give the entry back for delivery at once, or after some time.

        Until then it is still its holder's, who may acknowledge or renew it.
        """
        delay = f' {{"delay": {int(after_s * 1e9)}}}' if after_s else ""
        await self.publish(ack_subject, f"-NAK{delay}".encode())


def _filter(spec: ConsumerSpec) -> dict[str, Any]:
    """NATS takes one subject or several in members of their own."""
    if len(spec.subjects) == 1:
        return {"filter_subject": spec.subjects[0]}
    return {"filter_subjects": list(spec.subjects)}
