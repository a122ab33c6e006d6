"""What is read on a connection: messages of a stream by subject, and what is heard on one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import nats.errors
import nats.js.errors

from events.bus.connection import CALL_TIMEOUT_S, Connection
from events.bus.errors import DISCONNECTED
from events.bus.puller import Feed, Message, collect, collect_all, status_of
from events.errors import LogUnavailable

_BATCH = 1000
"""The most messages of one answer."""
_BATCHES_AT_ONCE = 250
"""How many answers may be on their way together."""
_END_OF_BATCH = "204"
_NO_MESSAGES = "404"


class Reads(Connection):
    """See `Connection`. Direct gets (ADR-31) are answered by any replica of a stream."""

    async def last(self, stream: str, subject: str) -> Message | None:
        """The subject's last message, as the stream's leader has it. Raises LogUnavailable."""
        try:
            raw = await self.call(self._js.get_last_msg(stream, subject))
        except nats.js.errors.APIError:
            return None
        return Message(subject=subject, data=raw.data or b"", sequence=raw.seq or 0)

    async def first(self, stream: str, subjects: str, *, after: int) -> Message | None:
        """The first message of a wildcard after `after`, as the stream's leader has it.

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
        """Up to `count` messages of one subject after `after` (ADR-31 batch get, any replica).

        Raises LogUnavailable. Fewer than `count` if a replica lags or the time ran out.
        """
        request = {"seq": after + 1, "next_by_subj": subject, "batch": count}
        async with self._direct_get(stream, request) as answers:
            return await collect(answers, timeout_s)

    async def count(self, stream: str, subjects: str, *, after: int = 0, timeout_s: float) -> int:
        """How many messages a wildcard has after `after`, told beside the first by any replica.

        Raises LogUnavailable.
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
        """The first `count` messages of a wildcard after `after`, or as many as there are.

        Raises LogUnavailable, also where they do not all come in time.
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
        """Those of up to 1024 subjects that hold a message.

        Raises LogUnavailable, also where they are not all told in time.
        """
        async with self._direct_get(stream, {"multi_last": subjects}) as answers:
            messages = await collect_all(answers, 1, CALL_TIMEOUT_S)
        return {message.subject for message in messages}

    def _require_answer(self, status: str) -> None:
        """Raises LogUnavailable where a direct get ended otherwise than by its last message."""
        if status not in {_END_OF_BATCH, _NO_MESSAGES}:
            self._dirty.set()  # 503: nobody answers for this stream
            raise LogUnavailable(f"The event log answered {status}.")

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

    @asynccontextmanager
    async def _direct_get(self, stream: str, request: dict[str, Any]) -> AsyncGenerator[Feed]:
        """What answers a direct get (ADR-31). Raises LogUnavailable."""
        async with self.asked(f"$JS.API.DIRECT.GET.{stream}", request) as answers:
            yield answers

    @asynccontextmanager
    async def asked(self, target: str, question: dict[str, Any]) -> AsyncGenerator[Feed]:
        """What comes as an answer, from however many. Raises LogUnavailable."""
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
