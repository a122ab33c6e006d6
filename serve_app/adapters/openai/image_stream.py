"""The pictures of a job as Server-Sent Events, with what they look like before they are done."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.sse import format_sse_event

from events.errors import ServiceError
from events.job import Job
from events.log import utc_now
from events.store.records import ApiKey, Scope
from serve_app.adapters.newest import Newest, newest_of
from serve_app.adapters.openai.answers import failed, images_of, picture_members
from serve_app.adapters.openai.errors import error_object
from serve_app.adapters.openai.requests import Wanted
from serve_app.adapters.pictures import base64_of
from serve_app.api_error import ApiError
from serve_app.auth import may_go_on
from serve_app.job_state import owned_job
from serve_app.live.event_stream import EventStream
from serve_app.live.listener import Listener, LiveEvent
from serve_app.live.messages import KEEP_ALIVE
from serve_app.replica import Replica
from storage.images import ImageStoreError

_NO_TOKENS = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
"""Clients in typed languages ask for it; nothing here is paid by the token."""


def image_stream(
    replica: Replica, request: Request, key: ApiKey, wanted: Wanted, *, event: str
) -> EventStream:
    """The job is accepted once the stream has its place. `event`: `image_generation`, ...

    Before it begins it may raise TooManyStreams, and what `Acceptance.accept` raises.
    """

    @asynccontextmanager
    async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
        with replica.streams.place(key.owner, request.scope.get("server")):
            began = utc_now()
            job = await replica.acceptance.accept(wanted.job)
            replica.note_accepted(job, began=began)
            told = _Stream(replica, request, key, job, wanted, event)
            try:
                async with replica.streams.watch(job) as (listener, _):
                    yield told.messages(listener)
            finally:
                if not told.is_told and wanted.job.idempotency_key is None:
                    replica.withdrawals.schedule(job.id)

    timeout_s = replica.services.http_settings.stream_send_timeout_s
    return EventStream(open_stream, send_timeout_s=timeout_s)


@dataclass
class _Stream:
    replica: Replica
    request: Request
    key: ApiKey
    job: Job
    wanted: Wanted
    event: str
    is_told: bool = field(default=False, init=False)
    """Whether the caller knows how the job ended, or its id."""
    _previews: int = field(default=0, init=False)
    """How many were sent."""

    async def messages(self, listener: Listener) -> AsyncGenerator[bytes]:
        """Raises SlowReader."""
        try:
            with newest_of(self.replica.services.progress, self.job.id) as newest:
                async for part in self._until_end(listener, newest):
                    yield part
            async for part in self._completed():
                yield part
        except ImageStoreError:
            return  # torn, which its reader notices
        except ApiError as error:
            yield _error(error)
        except ServiceError:  # what tells of the job is away, or the job is erased
            yield _error(failed(self.job))
        self.is_told = True

    async def _until_end(self, listener: Listener, newest: Newest) -> AsyncGenerator[bytes]:
        """What comes before the job has ended, or its time here is over."""
        services = self.replica.services
        go_on = may_go_on(self.request, self.key, Scope.GENERATE)
        now = asyncio.get_running_loop().time
        end_at = now() + services.adapter_settings.max_wait_s
        keep_alive_s = services.http_settings.stream_keep_alive_s
        check_at = now() + keep_alive_s
        yield KEEP_ALIVE
        while now() < end_at:
            self.job = await owned_job(services, self.job.id, self.key, with_request=False)
            if self.job.end is not None:
                return
            until = min(end_at, check_at)
            news: tuple[list[LiveEvent], list[bytes]] | None = ([], [])
            while news is not None and not news[0] and now() < until:
                if (preview := self._due(newest)) is not None:
                    yield preview
                news = await listener.next(max(until - now(), 0))
            if news is None:
                return
            if now() >= check_at:
                check_at = now() + keep_alive_s
                if not await go_on():
                    return
                yield KEEP_ALIVE

    def _due(self, newest: Newest) -> bytes | None:
        """A preview, where one is due: they are spread over the steps of the job."""
        asked = self.wanted.parameters
        progress, preview = newest.take()
        due = (self._previews + 1) / (asked.partial_images + 1)
        if preview is None or progress is None or progress.fraction < due:
            return None
        if self._previews == asked.partial_images:
            return None
        self._previews += 1
        return _message(
            f"{self.event}.partial_image",
            b64_json=b64encode(preview).decode(),
            partial_image_index=self._previews - 1,
            background="opaque",
            output_format="jpeg",
            quality=asked.quality,
            size=asked.size,
        )

    async def _completed(self) -> AsyncGenerator[bytes]:
        """Raises ApiError where there are no pictures."""
        if self.job.end is None:
            raise failed(self.job)
        type = f"{self.event}.completed"
        for image in images_of(self.job):
            told = picture_members(image, self.wanted.parameters)
            whole = _message(type, **told, request_id=self.job.id, usage=_NO_TOKENS, b64_json="")
            # Its last member is filled in part by part.
            before = whole.rstrip().removesuffix(b'"}')
            async for part in base64_of(self.replica.services.images, image):
                yield before + part
                before = b""
            yield b'"}\n\n'


def _error(error: ApiError) -> bytes:
    return format_sse_event(event="error", data_str=json.dumps({"error": error_object(error)}))


def _message(type: str, **members: Any) -> bytes:
    said = {"type": type, "created_at": int(time.time()), **members}
    return format_sse_event(event=type, data_str=json.dumps(said))
