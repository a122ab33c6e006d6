"""The operations of the service on NATS: publish, store, read, pull and acknowledge.

`Bus` converts the errors of nats-py into exceptions of Darkroom, and the messages of nats-py into
`Message`. The log and the queues are built on `Bus`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import islice
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors

from events.bus.connection import CALL_TIMEOUT_S, Connection, keeping_cancellation
from events.bus.nats_errors import (
    DISCONNECTED,
    FULL,
    STREAM_FAILED,
    WRONG_LAST_SEQUENCE,
    NoAnswer,
    WrongLastSequence,
    code_of,
)
from events.bus.puller import Feed, Message, Puller, collect, collect_all, status_of
from events.bus.streams import ConsumerSpec
from events.errors import LogFull, LogUnavailable
from events.log import StreamState

EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_STREAM = "Nats-Expected-Stream"
MESSAGE_ID = "Nats-Msg-Id"
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"

_QUICK_TIMEOUT_S = 1.0
"""The time-out in seconds of an optional look-up."""
_BATCH = 1000
"""The largest number of messages in one answer."""
_BATCHES_AT_ONCE = 250
"""The largest number of answers that are requested together."""
_END_OF_BATCH = "204"
_NO_SUBJECT = "no.message.has.this.subject"
_NO_MESSAGES = "404"


class Bus(Connection):
    """One connection, and the operations on its streams."""

    async def fill(self, stream: str) -> float:
        """Return the used share of the stream's `max_bytes`, 0..1. Raises LogUnavailable."""
        return (await self.state(stream)).fill

    async def max_bytes(self, stream: str) -> int:
        """Return the size limit of the stream in bytes, or -1 for none. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream))
        return info.config.max_bytes or -1

    async def state(self, stream: str) -> StreamState:
        """Return the state of the stream. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream), timeout_s=_QUICK_TIMEOUT_S)
        return StreamState(
            messages=info.state.messages,
            size_bytes=info.state.bytes,
            max_bytes=info.config.max_bytes or -1,
            last_sequence=info.state.last_seq,
        )

    async def last_sequence(self, stream: str) -> int:
        """Return the sequence of the last message ever stored, or 0. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream))
        return int(info.state.last_seq)

    async def made_at(self, stream: str) -> datetime:
        """Return the time at which the server created the stream. Raises LogUnavailable."""
        info = await self.call(self._js.stream_info(stream))
        created: datetime = info.created
        return created

    async def pages(self, stream: str, subjects: str) -> AsyncGenerator[dict[str, int]]:
        """Yield the number of messages by subject, in pages of subjects. Raises LogUnavailable."""
        offset, total = 0, 1
        while offset < total:
            question = {"subjects_filter": subjects, "offset": offset}
            answer = await self.ask(f"$JS.API.STREAM.INFO.{stream}", question)
            if page := answer["state"].get("subjects"):
                yield page
            offset, total = offset + answer["limit"], answer["total"]

    async def pending(self, stream: str, subjects: str) -> dict[str, int]:
        """Return the number of messages by subject. Raises LogUnavailable."""
        found: dict[str, int] = {}
        async for page in self.pages(stream, subjects):
            found |= page
        return found

    async def purge(
        self, stream: str, subject: str, *, keep: int = 0, upto: int | None = None
    ) -> None:
        """Remove all messages of the subject except the last `keep` messages.

        With `upto`, remove only messages up to this sequence. Raises LogUnavailable.
        """
        seq = None if upto is None else upto + 1
        await self.call(self._js.purge_stream(stream, seq=seq, subject=subject, keep=keep or None))

    async def write_error(self, stream: str) -> str | None:
        """Return the error of an earlier write for which the stream refuses all writes.

        Return None if there is no such error, or no answer. After a failed write, nats-server
        answers no publish to the stream until it is restarted, and answers each purge with the
        error. A purge of a subject without messages changes nothing.
        """
        question, request = f"$JS.API.STREAM.PURGE.{stream}", {"filter": _NO_SUBJECT}
        try:
            answer = await self._ask_api(question, request, timeout_s=_QUICK_TIMEOUT_S)
        except LogUnavailable:
            return None
        error = answer.get("error", {})
        if error.get("err_code") != STREAM_FAILED:
            return None
        # The first part of the description is the path of a file of the server.
        return str(error["description"]).rpartition(": ")[2]

    # Any replica of a stream answers a direct get (NATS ADR-31). Other reads are answered by the
    # leader of the stream.

    async def last(self, stream: str, subject: str) -> Message | None:
        """Return the last message of the subject, from the leader. Raises LogUnavailable."""
        try:
            raw = await self.call(self._js.get_last_msg(stream, subject))
        except nats.js.errors.APIError:
            return None
        return Message(subject=subject, data=raw.data or b"", sequence=raw.seq or 0)

    async def first(self, stream: str, subjects: str, *, after: int) -> Message | None:
        """Return the first message after sequence `after` whose subject matches, from the leader.

        Raises LogUnavailable.
        """
        try:
            raw = await self.call(self._js.get_msg(stream, after + 1, subjects, next=True))
        except nats.js.errors.APIError:
            return None
        return Message(subject=raw.subject or "", data=raw.data or b"", sequence=raw.seq or 0)

    async def batch(
        self, stream: str, subject: str, *, after: int, count: int, timeout_s: float
    ) -> list[Message]:
        """Return the first `count` messages of one subject after sequence `after`.

        Any replica may answer (NATS ADR-31 batch get). The result has fewer messages if the replica
        lags or if the time-out passes. Raises LogUnavailable.
        """
        request = {"seq": after + 1, "next_by_subj": subject, "batch": count}
        async with self._direct_get(stream, request) as answers:
            return await collect(answers, timeout_s)

    async def count(self, stream: str, subjects: str, *, after: int = 0, timeout_s: float) -> int:
        """Return the number of messages after sequence `after` whose subject matches.

        Any replica may answer. Raises LogUnavailable.
        """
        request = {"seq": after + 1, "next_by_subj": subjects, "batch": 1}
        async with self._direct_get(stream, request) as answers:
            try:
                async with asyncio.timeout(timeout_s):
                    first = await answers.get()
            except TimeoutError as error:
                raise LogUnavailable from error
        if (status := status_of(first)) is None:
            return first.pending + 1
        self._require_answer(status)
        return 0

    async def listing(self, stream: str, subjects: str, *, after: int, count: int) -> list[Message]:
        """Return the first `count` messages after sequence `after` whose subject matches.

        The result has fewer messages only if the stream has fewer. Raises LogUnavailable, also if
        not all messages arrive in time.
        """
        request = {"seq": after + 1, "next_by_subj": subjects, "batch": count}
        messages: list[Message] = []
        async with self._direct_get(stream, request) as answers:
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    while (status := status_of(message := await answers.get())) is None:
                        messages.append(message)
            except TimeoutError as error:
                raise LogUnavailable from error
        self._require_answer(status)
        return messages

    async def present(self, stream: str, subjects: Sequence[str]) -> set[str]:
        """Return those of up to 1024 `subjects` that have a message.

        Raises LogUnavailable, also if the answer is not complete in time.
        """
        async with self._direct_get(stream, {"multi_last": subjects}) as answers:
            messages = await collect_all(answers, 1, CALL_TIMEOUT_S)
        return {message.subject for message in messages}

    def _require_answer(self, status: str) -> None:
        """Raise LogUnavailable if a direct get did not end normally."""
        if status not in {_END_OF_BATCH, _NO_MESSAGES}:
            # After an unexpected status the streams are prepared again. For example, 503 means that
            # no server answers for this stream.
            self._dirty.set()
            raise LogUnavailable(f"The event log answered {status}.")

    async def batches(
        self, stream: str, subjects: Sequence[str], *, timeout_s: float
    ) -> dict[str, list[Message]]:
        """Return all messages of these subjects that a replica has, by subject.

        Subjects without messages are left out. Raises LogUnavailable, also if the time-out passes.
        """
        found: dict[str, list[Message]] = {}
        waiting = dict.fromkeys(subjects, 0)
        """By subject, the sequence after which there may be more messages."""
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

    @asynccontextmanager
    async def _direct_get(self, stream: str, request: dict[str, Any]) -> AsyncGenerator[Feed]:
        """Send a direct get (NATS ADR-31) and yield its answers. Raises LogUnavailable."""
        async with self.asked(f"$JS.API.DIRECT.GET.{stream}", request) as answers:
            yield answers

    @asynccontextmanager
    async def asked(self, target: str, question: dict[str, Any]) -> AsyncGenerator[Feed]:
        """Send a request and yield a feed of its answers. Raises LogUnavailable."""
        inbox = self._client.new_inbox()
        async with self.subscribe(inbox) as answers:
            await self._ask(target, question, inbox)
            yield answers

    async def _ask(self, target: str, request: dict[str, Any], reply: str) -> None:
        try:
            await self._client.publish(target, json.dumps(request).encode(), reply=reply)
        except (nats.errors.Error, *DISCONNECTED) as error:
            raise LogUnavailable from error

    @asynccontextmanager
    async def subscribe(self, subject: str) -> AsyncGenerator[Feed]:
        """Subscribe to a subject of core NATS. Raises LogUnavailable.

        The server handles the subscription before any request that this bus sends in the context.
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

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to a stream, wait until the message is on disk, and return its sequence.

        Raises LogUnavailable or LogFull if nothing was stored, WrongLastSequence if the expected
        sequence does not match, and NoAnswer if it is unknown whether the message was stored.
        """
        if not self.is_connected:
            raise LogUnavailable
        try:
            with keeping_cancellation():
                ack = await self._js.publish(
                    subject, data, timeout=timeout_s, headers=dict(headers or {})
                )
        except OSError as error:  # The error is a time-out, or a write failed after it began.
            raise NoAnswer from error
        except (nats.js.errors.APIError, *DISCONNECTED) as error:
            if code_of(error) in WRONG_LAST_SEQUENCE:
                raise WrongLastSequence from error
            if code_of(error) in FULL:
                raise LogFull from error
            raise self.unavailable(error) from error
        return ack.seq

    async def store_first(self, subject: str, data: bytes, *, timeout_s: float = 5) -> bool:
        """Publish unless the subject has a message. Return whether the message was stored.

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
        """Publish with core NATS: at most one delivery, and none without a connection."""
        with suppress(*DISCONNECTED, nats.errors.Error):
            await self._client.publish(subject, data)

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create or update the durable consumer. Raises LogUnavailable."""
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
        """Return the names of all consumers of a stream. Raises LogUnavailable."""
        found: list[str] = []
        total = 1
        while len(found) < total:
            subject = f"$JS.API.CONSUMER.NAMES.{stream}"
            answer = await self.ask(subject, {"offset": len(found)})
            names, total = answer.get("consumers") or [], answer["total"]
            if not names:
                break  # Some consumers were deleted after the first answer.
            found += names
        return found

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer if it exists. Raises LogUnavailable."""
        with suppress(nats.js.errors.APIError):
            await self.call(self._js.delete_consumer(stream, name))

    async def add_follower(self, stream: str, *, after: int) -> str:
        """Create an ephemeral consumer without acks from sequence `after` + 1. Return its name."""
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
        """Open a puller of the consumer within the context. Raises LogUnavailable."""
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

    async def return_messages(
        self, puller: Puller, *, unacknowledged: Collection[str] = ()
    ) -> None:
        """Return messages to the server, which delivers them again.

        These are the messages that arrived and that no `follow` returned, and the messages with the
        ack subjects `unacknowledged`. The puller is stopped first, so that it does not receive them
        again.
        """
        try:
            await puller.stop()
        finally:
            left = {message.ack_subject for message in puller.left()}
            for ack_subject in left.union(unacknowledged):
                await self.nak(ack_subject)

    async def ack(self, ack_subject: str, *, timeout_s: float = 5) -> bool:
        """Acknowledge a message. Return whether the server confirms this in time."""
        if not self.is_connected:
            return False
        try:
            with keeping_cancellation():
                await self._client.request(ack_subject, b"+ACK", timeout=timeout_s)
        except (TimeoutError, nats.errors.Error, *DISCONNECTED):
            return False
        return True

    async def renew(self, ack_subject: str) -> None:
        """Restart the ack wait of the entry."""
        await self.publish(ack_subject, b"+WPI")

    async def nak(self, ack_subject: str, *, after_s: float = 0.0) -> None:
        """Return the entry to the queue, which delivers it again after `after_s` seconds.

        Before the redelivery, the holder can still acknowledge or renew the entry.
        """
        delay = f' {{"delay": {int(after_s * 1e9)}}}' if after_s else ""
        await self.publish(ack_subject, f"-NAK{delay}".encode())


def _filter(spec: ConsumerSpec) -> dict[str, Any]:
    if len(spec.subjects) == 1:
        return {"filter_subject": spec.subjects[0]}
    return {"filter_subjects": list(spec.subjects)}
