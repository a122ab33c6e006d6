"""What happens to a job, as Server-Sent Events: what it is now, then each change, until its end.

Nothing is sent again: the job itself says all that counts.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.sse import format_sse_event

from events.errors import ServiceError
from events.job import Job
from events.store.records import ApiKey
from serve_app.adapters.comfy_v2.job_body import output, progress_body, status_of
from serve_app.adapters.newest import Newest, newest_of
from serve_app.auth import may_go_on
from serve_app.job_state import owned_job
from serve_app.live.event_stream import PLACE_PERIOD_S, EventStream
from serve_app.live.listener import Listener
from serve_app.live.messages import KEEP_ALIVE
from serve_app.replica import Replica


def job_stream(replica: Replica, request: Request, key: ApiKey, job: Job) -> EventStream:
    """Before it begins it may raise TooManyStreams, and what `Streams.watch` raises."""

    @asynccontextmanager
    async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
        board = replica.services.progress
        with (
            replica.streams.place(key.owner, request.scope.get("server")),
            newest_of(board, job.id) as newest,
        ):
            newest.progress = board.get(job.id)
            async with replica.streams.watch(job) as (listener, _):
                yield _Stream(replica, request, key, job).messages(listener, newest)

    timeout_s = replica.services.http_settings.stream_send_timeout_s
    return EventStream(open_stream, send_timeout_s=timeout_s)


class _ServerEnds(Exception):
    """Nothing comes any more."""


@dataclass
class _Stream:
    replica: Replica
    request: Request
    key: ApiKey
    job: Job
    _said: dict[str, Any] = field(default_factory=dict, init=False)
    """The last status."""
    _outputs: set[int] = field(default_factory=set, init=False)

    async def messages(self, listener: Listener, newest: Newest) -> AsyncGenerator[bytes]:
        """Raises SlowReader. What breaks it off ends it: its reader asks for the job then."""
        settings = self.replica.services.http_settings
        go_on = may_go_on(self.request, self.key)
        now = asyncio.get_running_loop().time
        end_at = now() + settings.stream_max_s
        check_at = now()
        try:
            while now() < end_at:
                self.job = await owned_job(self.replica.services, self.job.id, self.key)
                for message in await self._changes():
                    yield message
                if self.job.end is not None:
                    return
                if now() >= check_at:
                    check_at = now() + settings.stream_keep_alive_s
                    if not await go_on():
                        return
                    yield KEEP_ALIVE
                async for message in self._passing_ones(listener, newest, until=check_at):
                    yield message
        except (ServiceError, _ServerEnds):
            return

    async def _passing_ones(
        self, listener: Listener, newest: Newest, *, until: float
    ) -> AsyncGenerator[bytes]:
        """Until something is stored, or its place on the queue may be another one.

        Raises SlowReader, _ServerEnds.
        """
        now = asyncio.get_running_loop().time
        until = min(until, now() + PLACE_PERIOD_S)
        while True:
            if message := self._passing(newest):
                yield message
            news = await listener.next(max(until - now(), 0))
            if news is None:
                raise _ServerEnds
            if news[0] or now() >= until:
                return

    async def _changes(self) -> list[bytes]:
        """Results that have come, then the status, where it is another one."""
        services = self.replica.services
        found = [
            _message("output", output(services, self.job, image))
            for image in self.job.images
            if image.index not in self._outputs
        ]
        self._outputs |= {image.index for image in self.job.images}
        place = await self.replica.queue_places.of(self.job)
        position = None if place is None else place.position
        status = {"status": status_of(self.job), "queue_position": position}
        if status != self._said:
            self._said = status
            found.append(_message("status", status))
        return found

    def _passing(self, newest: Newest) -> bytes:
        progress, preview = newest.take()
        message = b""
        if (told := progress_body(self.job, progress)) is not None:
            message += _message("progress", told)
        if preview is not None:
            node = "" if progress is None else progress.node or ""
            message += _message(
                "preview",
                {
                    "node_id": node,
                    "content_type": "image/jpeg",
                    "data_base64": b64encode(preview).decode(),
                },
            )
        return message


def _message(event: str, data: dict[str, Any]) -> bytes:
    return format_sse_event(event=event, data_str=json.dumps(data))
