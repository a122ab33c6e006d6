"""The answer that is a stream: sent as things happen, cut off where it is read too slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.types import Receive, Scope, Send

from events.streams.log_streams import LogPlace, moved
from events.types import Cancelled, Completed, Erased, Failed, Submitted
from serve_app.live.listener import Listener, LiveEvent
from serve_app.live.messages import KEEP_ALIVE, begin_message, message_at
from serve_app.sending.timed_stream import SlowReader, TimedStream
from settings.http import HttpSettings

PLACE_PERIOD_S = 5.0
"""How often a job that waits is told where it stands."""
_AT_ONCE = 100
"""Stored events in one message of HTTP."""
_LAST = (Completed, Failed, Cancelled, Erased)

OpenStream = Callable[[], AbstractAsyncContextManager[AsyncGenerator[bytes]]]
"""Takes all that a stream needs, and gives it back. May raise what refuses the request."""


class EventStream(TimedStream):
    """Nothing is taken before the response is called, and all is given back when that ends."""

    media_type = "text/event-stream"

    def __init__(self, open_stream: OpenStream, *, send_timeout_s: float) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_nothing(), headers=headers)
        self._open_stream = open_stream
        self.send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A slow reader gets no proper end, so it knows that there is more."""
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
    """What one stream sends, and until when."""

    def __init__(
        self,
        listener: Listener,
        *,
        may_go_on: Callable[[], Awaitable[bool]],
        settings: HttpSettings,
        ends_with_job: bool,
        tell_place: Callable[[], Awaitable[bytes | None]] | None = None,
    ) -> None:
        """`may_go_on`: whether the key still opens this stream. `tell_place`: says of a job that
        waits where it stands; None where there is nothing to say.
        """
        self._listener = listener
        self._may_go_on = may_go_on
        self._settings = settings
        self._ends_with_job = ends_with_job
        self._tell_place = tell_place
        self._after: LogPlace = 0
        """Up to where the events were sent."""
        self._is_over = False

    async def messages(
        self, stored: Sequence[LiveEvent], *, after: LogPlace
    ) -> AsyncGenerator[bytes]:
        """Each event after the place `after` once, in the log's order. Raises SlowReader."""
        self._after = after
        yield begin_message(after)
        for part in self._parts(stored):
            yield part
        now = asyncio.get_running_loop().time
        keep_alive_s = self._settings.stream_keep_alive_s
        end_at, check_at = now() + self._settings.stream_max_s, now() + keep_alive_s
        place_at = now()
        while not self._is_over and (left_s := end_at - now()) > 0:
            if self._tell_place is not None and now() >= place_at:
                place_at = now() + PLACE_PERIOD_S
                if (place := await self._tell_place()) is not None:
                    yield place
            pause_s = left_s if self._tell_place is None else max(place_at - now(), 0.0)
            news = await self._listener.next(min(left_s, pause_s, keep_alive_s))
            if news is None:
                return
            events, passing = news
            for part in self._parts(events):
                yield part
            if passing or not events:
                yield b"".join(passing) or KEEP_ALIVE
            if now() >= check_at:
                check_at = now() + keep_alive_s
                if not await self._may_go_on():
                    return

    def _parts(self, events: Sequence[LiveEvent]) -> Generator[bytes]:
        """A few at a time: a reader who went on far back makes nobody wait, and holds no memory."""
        for at in range(0, len(events), _AT_ONCE):
            if part := self._take(events[at : at + _AT_ONCE]):
                yield part

    def _take(self, events: Iterable[LiveEvent]) -> bytes:
        """Those that were not sent yet, and what follows from them for the stream."""
        messages = []
        for live in events:
            if not isinstance(live.event.data, Submitted):
                self._tell_place = None  # it waits no more
            if live.position > self._after:
                self._after = moved(self._after, live.position)
                messages.append(message_at(live, self._after))
            self._is_over = self._is_over or (
                self._ends_with_job and isinstance(live.event.data, _LAST)
            )
        return b"".join(messages)
