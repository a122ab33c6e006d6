"""Streams: the event streams of one replica. A stream has the events of a job or of an owner.

Events are sent when they are stored. A client that reads too slowly is disconnected.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from events.bus.jetstream_log import LogContents
from events.history import History
from events.job import Job
from events.result import UrlFor
from events.types import Cancelled, Completed, Erased, Failed, Submitted
from serve_app.fair_threads import FairSemaphore
from serve_app.jobs import Jobs
from serve_app.live.broadcaster import BUFFER_EVENTS, Broadcaster, HistoryEvents
from serve_app.live.listener import Filter, Listener, LiveEvent
from serve_app.live.messages import (
    KEEP_ALIVE,
    begin_message,
    is_shown,
    live_event,
    position_message,
)
from serve_app.live.progress import ProgressBoard
from serve_app.live.queue_positions import QueuePositions
from serve_app.refusals import Limited, TooManyStreams
from serve_app.stored_file import SlowReader, TimedStream
from settings.constant import constant

if TYPE_CHECKING:
    from events.store.ended_jobs import EndedJobs

_SERVER_PERIOD_S = 0.5
_CONNECT_TIMEOUT_S = 2.0
POSITION_PERIOD_S = 5.0
"""Seconds between two messages about the queue position of a waiting job."""
_AT_ONCE = 100
"""The largest number of stored events in one HTTP body message."""
_LAST = (Completed, Failed, Cancelled, Erased)
_MAX_STREAMS = constant("MAX_STREAMS", 2000)
"""The most open event streams of one replica. A further stream is refused with 429."""
_KEEP_ALIVE_S = constant("STREAM_KEEP_ALIVE_S", 10.0)
_SEND_TIMEOUT_S = constant("STREAM_SEND_TIMEOUT_S", 10.0)
_MAX_S = constant("STREAM_MAX_S", 3600.0)
_HISTORY_READS = constant("STREAM_HISTORY_READS", 2)
"""The most histories that one replica reads at a time, for old cursors. If there are several reads,
one owner cannot use all of them.
"""


class ServerEnd:
    """Ends all streams when the HTTP server no longer accepts connections."""

    def __init__(
        self,
        end_streams: Callable[[], None],
        *,
        are_streams: Callable[[], bool],
        period_s: float = _SERVER_PERIOD_S,
    ) -> None:
        self._end_streams = end_streams
        self._are_streams = are_streams
        self._period_s = period_s
        self._watch: asyncio.Task[None] | None = None

    def begin(self, server: tuple[str, int | None] | None) -> None:
        """Begin to check the address and port `server` that received a request, if it is known."""
        if server is None or not server[1] or (self._watch is not None and not self._watch.done()):
            return
        self._watch = asyncio.create_task(self._until_it_ends(server[0], server[1]))

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _until_it_ends(self, host: str, port: int) -> None:
        while self._are_streams():
            if not await _listens(host, port):
                self._end_streams()
                return
            await asyncio.sleep(self._period_s)


async def _listens(host: str, port: int) -> bool:
    """Return False only if it is certain that nothing listens on the port."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    # After another error, such as TimeoutError, it is not certain that nothing listens.
    except OSError:
        return True
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


class OpenStreams:
    def __init__(self, most: int, *, per_owner: int) -> None:
        """`per_owner` is the limit for one owner; 0 means no limit."""
        self._most = most
        self._per_owner = per_owner
        self._by_owner: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._by_owner.total()

    @contextmanager
    def count_stream(self, owner: str) -> Generator[None]:
        """Count a stream until the context ends. Raises TooManyStreams."""
        if self._per_owner and self._by_owner[owner] >= self._per_owner:
            raise TooManyStreams(Limited.OWNER, self._per_owner)
        if self.count >= self._most:
            raise TooManyStreams("All owners together", self._most)
        self._by_owner[owner] += 1
        try:
            yield
        finally:
            self._by_owner[owner] -= 1
            self._by_owner += Counter()  # This removes owners without streams.


OpenStream = Callable[[], AbstractAsyncContextManager[AsyncGenerator[bytes]]]
"""Acquires and releases the resources of a stream. May raise errors that refuse the request."""


class EventStream(TimedStream):
    """A response that acquires its resources when it is called, and releases them at its end."""

    media_type = "text/event-stream"

    def __init__(self, open_stream: OpenStream, *, send_timeout_s: float) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_nothing(), headers=headers)
        self._open_stream = open_stream
        self.send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. If the client reads too slowly, the response stays incomplete.

        From this, the client can detect that events are missing.
        """
        async with self._open_stream() as messages:
            self.body_iterator = messages
            try:
                await super().__call__(scope, receive, send)
            except SlowReader:
                return


async def _nothing() -> AsyncGenerator[bytes]:
    return
    yield


class Following:
    """The content of one event stream, and the conditions that end the stream."""

    def __init__(
        self,
        listener: Listener,
        *,
        key_check: Callable[[], Awaitable[bool]],
        keep_alive_s: float,
        max_s: float,
        ends_with_job: bool,
        position_message_of: Callable[[], Awaitable[bytes | None]] | None = None,
    ) -> None:
        """`key_check` returns whether the key may still read this stream.

        `position_message_of` returns a message with the queue position of a waiting job, or None.
        """
        self._listener = listener
        self._key_check = key_check
        self._keep_alive_s = keep_alive_s
        self._max_s = max_s
        self._ends_with_job = ends_with_job
        self._position_message_of = position_message_of
        self._after: int = 0
        """The offset up to which events were sent."""
        self._is_over = False

    async def messages(self, stored: Sequence[LiveEvent], *, after: int) -> AsyncGenerator[bytes]:
        """Yield each event after the offset `after` once, in the log's order. Raises SlowReader."""
        self._after = after
        yield begin_message(after)
        for part in self._parts(stored):
            yield part
        now = asyncio.get_running_loop().time
        keep_alive_s = self._keep_alive_s
        end_at, check_at = now() + self._max_s, now() + keep_alive_s
        position_at = now()
        while not self._is_over and (left_s := end_at - now()) > 0:
            if self._position_message_of is not None and now() >= position_at:
                position_at = now() + POSITION_PERIOD_S
                if (position := await self._position_message_of()) is not None:
                    yield position
            pause_s = left_s if self._position_message_of is None else max(position_at - now(), 0.0)
            news = await self._listener.next(min(left_s, pause_s, keep_alive_s))
            if news is None:
                return
            events, unstored = news
            for part in self._parts(events):
                yield part
            if unstored or not events:
                yield b"".join(unstored) or KEEP_ALIVE
            if now() >= check_at:
                check_at = now() + keep_alive_s
                if not await self._key_check():
                    return

    def _parts(self, events: Sequence[LiveEvent]) -> Generator[bytes]:
        """Encode a few events at a time, to limit memory and the time without a yield."""
        for at in range(0, len(events), _AT_ONCE):
            if part := self._encode_unsent(events[at : at + _AT_ONCE]):
                yield part

    def _encode_unsent(self, events: Iterable[LiveEvent]) -> bytes:
        """Encode the events that were not sent yet, and update the state of the stream."""
        messages = []
        for live in events:
            if not isinstance(live.event.data, Submitted):
                self._position_message_of = None  # The job no longer waits in the queue.
            if live.position > self._after:
                self._after = live.position
                messages.append(live.message)
            self._is_over = self._is_over or (
                self._ends_with_job and isinstance(live.event.data, _LAST)
            )
        return b"".join(messages)


KeyCheck = Callable[[], Awaitable[bool]]


class Streams:
    def __init__(
        self,
        jobs: Jobs,
        history: History,
        contents: LogContents,
        *,
        ended_jobs: EndedJobs,
        progress: ProgressBoard,
        queue_positions: QueuePositions,
        url_for: UrlFor,
        max_of_owner: int,
    ) -> None:
        """`contents` must read the log of `jobs`. A `max_of_owner` of 0 means no limit."""
        self._history = history
        self._progress = progress
        self._queue_positions = queue_positions
        self._url_for = url_for
        self.keep_alive_s = _KEEP_ALIVE_S
        """Seconds without a message after which a stream sends a comment."""
        self.send_timeout_s = _SEND_TIMEOUT_S
        """Seconds that a client may take to receive a message before it is disconnected."""
        self.max_s = _MAX_S
        """Seconds after which a stream ends. The client can then open another stream."""
        self._broadcaster = Broadcaster(
            jobs.log,
            contents,
            histories=HistoryEvents(
                ended_jobs,
                history,
                FairSemaphore(_HISTORY_READS, per_owner=max(1, _HISTORY_READS - 1)),
                url_for=url_for,
                most_jobs=BUFFER_EVENTS,
            ),
            find_job=partial(jobs.current, with_request=False),
            url_for=url_for,
        )
        self._open = OpenStreams(_MAX_STREAMS, per_owner=max_of_owner)
        self._server_end = ServerEnd(
            self._broadcaster.end_streams, are_streams=lambda: self._open.count > 0
        )
        progress.listeners.append(self._broadcaster.send_progress)

    def of_job(
        self, job: Job, *, after: int, key_check: KeyCheck, server: tuple[str, int | None] | None
    ) -> EventStream:
        """Stream the stored events of the job after the offset `after`, until the job ends.

        `server` is the address that received the request. Opening the stream raises
        TooManyStreams and the errors of `History.read`.
        """

        @asynccontextmanager
        async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
            with self.count_stream(job.submitted.owner, server):
                async with self.watch(job) as (listener, stored):
                    following = Following(
                        listener,
                        key_check=key_check,
                        keep_alive_s=self.keep_alive_s,
                        max_s=self.max_s,
                        ends_with_job=True,
                        position_message_of=partial(self._position_message, job)
                        if job.end is None
                        else None,
                    )
                    yield following.messages(stored, after=after)

        return EventStream(open_stream, send_timeout_s=self.send_timeout_s)

    def of_owner(
        self,
        owner: str,
        only: Filter,
        *,
        after: int | None,
        key_check: KeyCheck,
        server: tuple[str, int | None] | None,
    ) -> EventStream:
        """Stream the stored events of the owner's jobs after the offset `after`; None means now.

        Opening the stream raises TooManyStreams and the errors of `Broadcaster.watch_owner`.
        """

        @asynccontextmanager
        async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
            async with self.watch_owner(owner, only, after=after, server=server) as listener:
                following = Following(
                    listener,
                    key_check=key_check,
                    keep_alive_s=self.keep_alive_s,
                    max_s=self.max_s,
                    ends_with_job=False,
                )
                yield following.messages((), after=listener.after)

        return EventStream(open_stream, send_timeout_s=self.send_timeout_s)

    @asynccontextmanager
    async def watch_owner(
        self,
        owner: str,
        only: Filter,
        *,
        after: int | None,
        server: tuple[str, int | None] | None,
    ) -> AsyncGenerator[Listener]:
        """Listen to an owner's events. The listener counts as an open stream of the owner.

        Raises TooManyStreams and the errors of `Broadcaster.watch_owner`.
        """
        with self.count_stream(owner, server):
            async with self._broadcaster.watch_owner(owner, only, after=after) as listener:
                with self._progress.watching():
                    yield listener

    @contextmanager
    def count_stream(self, owner: str, server: tuple[str, int | None] | None) -> Generator[None]:
        """Count one open stream of the owner. Raises TooManyStreams."""
        with self._open.count_stream(owner):
            self._server_end.begin(server)
            yield

    @asynccontextmanager
    async def watch(self, job: Job) -> AsyncGenerator[tuple[Listener, list[LiveEvent]]]:
        """Yield a listener for future events of the job, and the events stored so far.

        Raises LogUnavailable and the errors of `History.read`.
        """
        async with self._listener(job) as listener:
            # The listener exists before this read, so that no event is missed.
            yield listener, await self._stored(job.id)

    async def stop(self) -> None:
        self._server_end.stop()
        await self._broadcaster.stop()

    @asynccontextmanager
    async def _listener(self, job: Job) -> AsyncGenerator[Listener]:
        """Listen to an open job. The listener of an ended job is empty. Raises LogUnavailable."""
        if job.end is None:
            async with self._broadcaster.watch_job(job.id) as listener:
                with self._progress.watching(job.id):
                    yield listener
        else:
            listener = Listener(most_events=1)
            listener.end()
            yield listener

    async def _position_message(self, job: Job) -> bytes | None:
        position = await self._queue_positions.of(job)
        return None if position is None else position_message(job.id, position)

    async def _stored(self, job_id: str) -> list[LiveEvent]:
        """Return the events of a job that streams send. Raises the errors of `History.read`."""
        return [
            live_event(event, self._url_for)
            for event in await self._history.read(job_id)
            if is_shown(event)
        ]
