"""The event log on NATS JetStream: one exact subject per job, every append under its sequence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from events.bus.bus import EXPECTED_LAST_SUBJECT_SEQUENCE, EXPECTED_STREAM, MESSAGE_ID, Bus
from events.bus.errors import NoAnswer, WrongLastSequence
from events.bus.puller import Feed, Message, Puller
from events.bus.streams import JOBS, event_subject, job_id_in, job_subject
from events.errors import HistoryGone, LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout
from events.log import Appended, Conflict, EventReader, StoredEvent, Subscription, stored
from events.retry import pause
from events.streams.log_streams import LogPlace, LogStream
from events.types import Erased, Event
from events.wire.cloud_events import decode_stored, encode

_ONE = LogStream()
"""Whose positions are its sequences."""
_BATCH = 500
"""How many events are asked for where the last one does not say how many there are."""


class JetStreamLog:
    """Events of one kind: of jobs (`JOBS`) or of deliveries (`DELIVERIES`)."""

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str = JOBS,
        subject_of: Callable[[str], str] = job_subject,
        numbers: LogStream = _ONE,
        append_timeout_s: float = 10.0,
        try_timeout_s: float = 2.0,
    ) -> None:
        """`numbers`: how the positions of the stream's messages follow from their sequences."""
        self._bus = bus
        self._stream = stream
        self._subject_of = subject_of
        self._numbers = numbers
        self._append_timeout_s = append_timeout_s
        self._try_timeout_s = try_timeout_s

    @property
    def parts(self) -> Sequence[JetStreamLog]:
        return (self,)

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        """Send the same bytes until answered or the time is up; see `EventLog.append`.

        Once an answer is lost, the event may be there: no refusal after that says that it is not.
        """
        payload = encode(event)
        sequence = self._numbers.sequence(expected)
        headers = {
            EXPECTED_LAST_SUBJECT_SEQUENCE: str(sequence),
            EXPECTED_STREAM: self._stream,
            MESSAGE_ID: event.id,
        }
        subject = self._subject_of(event.job_id)
        give_up_at = time.monotonic() + self._append_timeout_s
        sent = False
        while True:
            try:
                try:
                    sequence = await self._bus.store(
                        subject, payload, timeout_s=self._try_timeout_s, headers=headers
                    )
                except WrongLastSequence:
                    return await self._after_conflict(event, expected, give_up_at=give_up_at)
                position = self._numbers.position(sequence)
                return Appended(stored(event, position, size_bytes=len(payload)))
            except NoAnswer:
                sent = True
            except (LogUnavailable, LogFull, ReadTimeout):
                if not sent:
                    raise
                await asyncio.sleep(0.1)
            if time.monotonic() >= give_up_at:
                raise OutcomeUnknown

    async def _after_conflict(
        self, event: Event, expected: int, *, give_up_at: float
    ) -> Appended | Conflict:
        """Mine may be there: the acknowledgement of an earlier try was lost."""
        history = await self._history(event.job_id, give_up_at=give_up_at)
        mine = next((known for known in history if known.id == event.id), None)
        if mine is not None:
            return Appended(mine)
        if not history and expected:
            raise HistoryGone
        news = tuple(known for known in history if known.position > expected)
        if not news:
            raise ReadTimeout("the log refused an append, but shows nothing behind it")
        return Conflict(news)

    async def read(self, job_id: str) -> list[Event]:
        return await self._history(job_id, give_up_at=time.monotonic() + self._append_timeout_s)

    async def _history(self, job_id: str, *, give_up_at: float) -> list[Event]:
        """Batches until the leader's last message is here, which mostly says how many there are.

        The first ones may be in the archive, and before an `Erased` nothing counts.
        """
        last = await self.last(job_id)
        if last is not None and last.version == 1:
            return [last]
        events: list[Event] = []
        while last is not None and not isinstance(last.data, Erased):
            seen = events[-1].version if events else 0
            messages = await self._bus.batch(
                self._stream,
                self._subject_of(job_id),
                after=self._numbers.sequence(events[-1].position) if events else 0,
                count=max(last.version - seen, 0) or _BATCH,
                timeout_s=self._try_timeout_s,
            )
            events += map(self._event_in, messages)
            if events and events[-1].position >= last.position:
                return events
            if time.monotonic() >= give_up_at:
                raise ReadTimeout
            await asyncio.sleep(0.05)
            last = await self.last(job_id)  # it may have been purged meanwhile
        return [] if last is None else [last]

    async def last(self, job_id: str) -> Event | None:
        message = await self._bus.last(self._stream, self._subject_of(job_id))
        return self._event_in(message) if message else None

    def _event_in(self, message: Message) -> Event:
        return event_in(message, self._numbers)

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        by_subject = {self._subject_of(job_id): job_id for job_id in job_ids}
        found = await self._bus.batches(
            self._stream, list(by_subject), timeout_s=self._append_timeout_s
        )
        return {
            by_subject[subject]: tuple(
                StoredEvent(self._numbers.position(each.sequence), each.data) for each in messages
            )
            for subject, messages in found.items()
        }

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        sequence = None if upto is None else self._numbers.sequence(upto)
        await self._bus.purge(self._stream, self._subject_of(job_id), keep=keep, upto=sequence)

    @asynccontextmanager
    async def reader(self, *, after: LogPlace) -> AsyncGenerator[EventReader]:
        sequence = self._numbers.last_sequence(after)
        async with JetStreamReader(
            self._bus, self._stream, after=sequence, numbers=self._numbers
        ) as reader:
            yield reader

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[Subscription]:
        async with self._bus.subscribe(event_subject(job_id)) as feed:
            yield _Watch(feed, self._numbers)


class _Watch:
    def __init__(self, feed: Feed, numbers: LogStream) -> None:
        self._feed = feed
        self._numbers = numbers

    async def next(self, timeout_s: float) -> Event | None:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._feed.get()
        except TimeoutError:
            return None
        return event_in(message, self._numbers)


class JetStreamReader:
    """Follows a stream without a durable consumer: the caller keeps the position.

    A message lost on the way shows as a gap in the consumer's own sequence; then, and after every
    failure, a new consumer begins after the last position that was returned.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        *,
        after: int,
        batch: int = 500,
        numbers: LogStream = _ONE,
    ) -> None:
        """`after`: a sequence of the stream; `numbers`: see `JetStreamLog`."""
        self._bus = bus
        self._numbers = numbers
        self._stream = stream
        self._after = after
        self._batch = batch
        self._delivered = 0
        self._puller: Puller | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> JetStreamReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def next(self, timeout_s: float) -> list[Event]:
        """Empty if nothing came in time, or the log is not available."""
        try:
            puller = self._puller or await self._open()
            messages = await puller.follow(batch=self._batch, timeout_s=timeout_s)
        except LogUnavailable:
            await self._reset()
            await pause(0.4)
            return []
        if not messages:
            if not self._bus.is_connected:
                await self._reset()
            return []
        if [m.consumer_sequence for m in messages] != [
            self._delivered + 1 + i for i in range(len(messages))
        ]:
            await self._reset()
            return []
        self._delivered += len(messages)
        self._after = messages[-1].sequence
        return [event_in(message, self._numbers) for message in messages]

    async def _open(self) -> Puller:
        name = await self._bus.add_follower(self._stream, after=self._after)
        self._puller = await self._stack.enter_async_context(self._bus.puller(self._stream, name))
        self._delivered = 0
        return self._puller

    async def _reset(self) -> None:
        self._puller = None
        await self._stack.aclose()


def event_in(message: Message, numbers: LogStream) -> Event:
    """What a message of a log says. One that says nothing is its job's event all the same."""
    job_id = job_id_in(message.subject)
    return decode_stored(message.data, job_id=job_id, position=numbers.position(message.sequence))
