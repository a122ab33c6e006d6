"""ComfyUI's websocket, which sends the events of the caller's jobs in ComfyUI's format."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import struct
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from events.errors import DatabaseUnavailable, JobUnreadable, LogUnavailable, ReadTimeout
from events.job import Job
from events.job_progress import JobProgress
from events.store.records import ApiKey, Scope
from events.types import Cancelled, Completed, Erased, Event, Failed, Started, Submitted
from serve_app.access.api_keys import require_scope
from serve_app.auth import key_check
from serve_app.fair_threads import QUICK_BYTES
from serve_app.live.listener import Filter, Listener, UnstoredKind
from serve_app.protocols.comfyui.bodies import twin
from serve_app.protocols.comfyui.catalogue import server_features
from serve_app.protocols.comfyui.job_lists import open_jobs, remaining, wait_for_read_model
from serve_app.protocols.comfyui.prompts import CLIENT_ID, status
from serve_app.protocols.comfyui.records import (
    class_of,
    error_of,
    media_type_of,
    outputs_of,
    prompt_of,
)
from serve_app.protocols.credentials import protocol_caller
from serve_app.protocols.notes import note_members
from serve_app.refusals import Busy
from serve_app.replica import Callers, JobAccess, replica_of
from serve_app.stored_file import SlowReader
from storage.images import ImageStoreError

Message: TypeAlias = str | bytes

_PREVIEW, _PREVIEW_WITH_METADATA = 1, 4
_FORMATS = {"image/jpeg": 1, "image/png": 2}
_MOST_JOBS = 1000
_JPEG = "image/jpeg"
NORMAL, GOING_AWAY, POLICY, TRY_AGAIN_LATER = 1000, 1001, 1008, 1013
"""Close codes of a websocket (RFC 6455, section 7.4.1, and its registry)."""
_STATUS_PERIOD_S = 0.25
_WEBSOCKET_OUTPUTS = frozenset({"SaveImageWebsocket", "ETN_SendImageWebSocket"})
_UNAVAILABLE = (DatabaseUnavailable, LogUnavailable, ReadTimeout, JobUnreadable)
_CLOSE_S = 2.0
_HIDDEN_LOG_TEXTS = ("without completing handshake", '"WebSocket %s"')

router = APIRouter()


def message(type: str, **data: Any) -> str:
    return json.dumps({"type": type, "data": data})


def of_job(type: str, job_id: str, **data: Any) -> str:
    """Encode a message about a job, with a timestamp."""
    return message(type, prompt_id=job_id, timestamp=int(time.time() * 1000), **data)


def executing(job_id: str, node: str | None) -> str:
    """Encode the node that runs now; None means that the job has ended."""
    shown = {} if node is None else {"display_node": node}
    return message("executing", node=node, prompt_id=job_id, **shown)


def encode_progress(job_id: str, node: str, progress: JobProgress) -> list[Message]:
    """Encode progress in both of ComfyUI's formats, because some clients support only one."""
    value = min(progress.done, progress.total)
    state = {
        "value": value,
        "max": progress.total,
        "state": "running",
        "node_id": node,
        "prompt_id": job_id,
        "display_node_id": node,
        "parent_node_id": None,
        "real_node_id": node,
    }
    return [
        message("progress_state", prompt_id=job_id, nodes={node: state}),
        message("progress", value=value, max=progress.total, prompt_id=job_id, node=node),
    ]


def picture(data: bytes, media_type: str) -> bytes:
    """Encode an image in the binary format that all clients can read."""
    return struct.pack(">II", _PREVIEW, _FORMATS.get(media_type, 2)) + data


def picture_of(job_id: str, node: str, data: bytes, media_type: str) -> bytes:
    """Encode an image with metadata, for clients that support metadata."""
    metadata = json.dumps(
        {
            "node_id": node,
            "display_node_id": node,
            "parent_node_id": None,
            "real_node_id": node,
            "prompt_id": job_id,
            "image_type": media_type,
        }
    ).encode()
    return struct.pack(">II", _PREVIEW_WITH_METADATA, len(metadata)) + metadata + data


@dataclass(slots=True)
class _Running:
    is_started: bool = False
    node: str | None = None
    """The node that runs now, if known."""
    class_type: str = ""
    news: JobProgress | None = None
    """The newest progress that was not sent yet."""
    preview: bytes | None = field(default=None, repr=False)


class WatchedJobs:
    """The jobs that were submitted with one client id, at most the newest 1000."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._jobs: OrderedDict[str, _Running] = OrderedDict()
        self.has_metadata = False
        """Whether the client reads previews with metadata."""

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, job_id: str) -> None:
        self._jobs.setdefault(job_id, _Running())
        if len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)

    def running_node(self, job_id: str) -> tuple[str, str]:
        """Return the node that runs now and its class; empty texts if the node is not known."""
        job = self._jobs.get(job_id, _Running())
        return job.node or "", job.class_type

    def note_progress(self, job_id: str, progress: JobProgress) -> bool:
        """Keep the progress until `progress_messages` is called.

        Returns False if the job is not watched.
        """
        job = self._jobs.get(job_id)
        if job is None:
            return False
        job.news = progress
        job.preview = progress.preview or job.preview
        return True

    def begin(self, job_id: str) -> list[Message]:
        """Mark the job as running, and return the start messages if they were not sent yet."""
        job = self._jobs[job_id]
        if job.is_started:
            return []
        job.is_started = True
        return [of_job("execution_start", job_id), of_job("execution_cached", job_id, nodes=[])]

    def take(self, event: Event) -> list[Message]:
        """Process an event that does not end a job, and return the messages for the client."""
        match event.data:
            case Submitted(client_id=self._client_id):
                self.add(event.job_id)
            case Started() if event.job_id in self._jobs:
                return self.begin(event.job_id)
            case _:
                pass
        return []

    def is_end(self, event: Event) -> bool:
        """Return whether the event ends one of the watched jobs."""
        is_one = isinstance(event.data, Completed | Failed | Cancelled | Erased)
        return is_one and event.job_id in self._jobs

    def has_started(self, job_id: str) -> bool:
        return self._jobs[job_id].is_started

    def forget(self, job_id: str) -> None:
        del self._jobs[job_id]

    def progress_messages(self) -> list[Message]:
        """Return the progress messages of all jobs since the previous call."""
        messages: list[Message] = []
        for job_id, job in self._jobs.items():
            if job.news is not None:
                messages += self.begin(job_id) + self._progress(job_id, job, job.news)
                job.news = job.preview = None
        return messages

    def _progress(self, job_id: str, job: _Running, progress: JobProgress) -> list[Message]:
        if not progress.node:
            return []
        messages: list[Message] = []
        if progress.node != job.node:
            job.node, job.class_type = progress.node, progress.class_type or ""
            messages.append(executing(job_id, job.node))
        messages += encode_progress(job_id, progress.node, progress)
        if job.preview is not None:
            messages.append(
                picture_of(job_id, progress.node, job.preview, _JPEG)
                if self.has_metadata
                else picture(job.preview, _JPEG)
            )
        return messages


class Session:
    def __init__(
        self,
        websocket: WebSocket,
        access: JobAccess,
        *,
        owner: str,
        client_id: str,
        key_check: Callable[[], Awaitable[bool]],
    ) -> None:
        self._websocket = websocket
        self._access = access
        self._owner = owner
        self._client_id = client_id
        self._key_check = key_check
        self._jobs = WatchedJobs(client_id)
        self._begun_at = 0
        """The offset of the read model when the open jobs had been read."""
        self._position = 0
        """The offset of the last event that may have changed the number of open jobs."""
        self._status_at = math.inf
        """The event loop time at which changes of the status are sent together; infinite if there
        are no changes.
        """

    async def run(self, listener: Listener) -> int:
        """Serve the websocket until either side closes it. Returns the close code."""

        def note(job_id: str, progress: JobProgress) -> None:
            if self._jobs.note_progress(job_id, progress):
                listener.put_unstored(job_id, UnstoredKind.PROGRESS, b"")

        board = self._access.live.progress
        board.listeners.append(note)
        receiving = asyncio.create_task(self._receive_all())
        sending = asyncio.create_task(self._send_all(listener))
        try:
            done, _ = await asyncio.wait((receiving, sending), return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except SlowReader:
            return TRY_AGAIN_LATER
        except _UNAVAILABLE:
            return TRY_AGAIN_LATER
        finally:
            board.listeners.remove(note)
            for task in (receiving, sending):
                task.cancel()
            await asyncio.gather(receiving, sending, return_exceptions=True)

    async def _receive_all(self) -> int:
        while True:
            received = await self._websocket.receive()
            if received["type"] == "websocket.disconnect":
                return NORMAL
            if (text := received.get("text")) is not None:
                await self._process(text)

    async def _process(self, text: str) -> None:
        """Process a message of the client. All messages except `feature_flags` are ignored.

        Longer messages are not parsed, because a client may send many of them at once.
        """
        if len(text) > QUICK_BYTES:
            return
        try:
            received = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(received, dict) or received.get("type") != "feature_flags":
            return
        flags = received.get("data")
        self._jobs.has_metadata = (
            isinstance(flags, dict) and flags.get("supports_preview_metadata") is True
        )
        await self._send(message("feature_flags", **server_features(self._access)))

    async def _send_all(self, listener: Listener) -> int:
        await self._begin()
        now = asyncio.get_running_loop().time
        keep_alive_s = self._access.live.streams.keep_alive_s
        check_at = now() + keep_alive_s
        while True:
            pause_s = max(min(check_at, self._status_at) - now(), 0.0)
            if (news := await listener.next(pause_s)) is None:
                return GOING_AWAY
            for live in news[0]:
                async for each in self._of(live.event):
                    await self._send(each)
            for each in self._jobs.progress_messages():
                await self._send(each)
            if now() >= self._status_at:
                await self._send_status()
            if now() >= check_at:
                check_at = now() + keep_alive_s
                if not await self._key_check():
                    return POLICY

    async def _begin(self) -> None:
        """Add the open jobs, and send the first messages.

        The read model must first have all events, so that no job is missed. This replica may
        receive the newest events later, also those of a job that the client has just submitted.
        """
        await wait_for_read_model(self._access)
        open_now = await open_jobs(self._access, self._owner)
        self._begun_at = await self._access.read_model.offset()
        for job in open_now:
            if job.submitted.client_id == self._client_id:
                self._jobs.add(job.id)
                if job.has_running_attempt:
                    self._jobs.note_progress(job.id, self._known_progress(job))
        count = await remaining(self._access, self._owner)
        await self._send(message("status", status=status(count), sid=self._client_id))
        for each in self._jobs.progress_messages():
            await self._send(each)

    def _known_progress(self, job: Job) -> JobProgress:
        return self._access.live.progress.get(job.id) or JobProgress(done=0, total=1)

    async def _of(self, event: Event) -> AsyncGenerator[Message]:
        if isinstance(event.data, Submitted | Completed | Failed | Cancelled | Erased):
            self._position = event.position
            if self._status_at == math.inf:
                self._status_at = asyncio.get_running_loop().time() + _STATUS_PERIOD_S
        for each in self._jobs.take(event):
            yield each
        if await self._has_ended_before(event):
            self._jobs.add(event.job_id)
        if self._jobs.is_end(event):
            for each in self._jobs.progress_messages():
                yield each
            async for message in self._end(event):
                yield message
            self._jobs.forget(event.job_id)

    async def _has_ended_before(self, event: Event) -> bool:
        """Return whether the event ended a job of the client after the client had connected and
        before the open jobs were read, so that the job is not among them.
        """
        is_end = isinstance(event.data, Completed | Failed | Cancelled)
        if not is_end or event.position > self._begun_at:
            return False
        job = await self._access.jobs.current(event.job_id)
        return job is not None and job.submitted.client_id == self._client_id

    async def _end(self, event: Event) -> AsyncGenerator[Message]:
        id, was_started = event.job_id, self._jobs.has_started(event.job_id)
        job = await self._access.jobs.current(id)
        if job is None or job.erased:
            yield executing(id, None)
            return
        node, class_type = self._jobs.running_node(id)
        if isinstance(event.data, Completed):
            for each in self._jobs.begin(id):
                yield each
            async for each in self._results(job):
                yield each
            yield of_job("execution_success", id, **note_members(job))
        elif isinstance(event.data, Failed):
            error = error_of(job, node=node, class_type=class_type)
            yield message("execution_error", **error)
        else:
            error = error_of(job, node=node, class_type=class_type)
            yield message("execution_interrupted", **error)
        if was_started or isinstance(event.data, Completed):
            yield executing(id, None)

    async def _results(self, job: Job) -> AsyncGenerator[Message]:
        prompt = prompt_of(job)
        for node, output in outputs_of(job).items():
            if class_of(node, prompt) in _WEBSOCKET_OUTPUTS:
                yield executing(job.id, node)
                await self._send_pictures(job, node)
            yield message("executed", node=node, display_node=node, output=output, prompt_id=job.id)

    async def _send_pictures(self, job: Job, node: str) -> None:
        """Send the images of a node that outputs to the websocket. Raises SlowReader."""
        for image in job.images:
            if image.node == node:
                # If the image cannot be sent, the message `executed` still names the image.
                with suppress(ImageStoreError, Busy):
                    async with self._access.bodies.reserve_memory(self._owner, image.size_bytes):
                        data = await self._access.files.images.get(image.key)
                        await self._send(picture(data, media_type_of(image)))

    async def _send_status(self) -> None:
        """Send the number of open jobs, after the read model has the last change.

        A client that receives the number reads the list of jobs from the read model.
        """
        self._status_at = math.inf
        await wait_for_read_model(self._access, self._position)
        count = await remaining(self._access, self._owner)
        await self._send(message("status", status=status(count)))

    async def _send(self, each: Message) -> None:
        """Send a message. Raises SlowReader if the client is too slow or has disconnected."""
        try:
            async with asyncio.timeout(self._access.live.streams.send_timeout_s):
                if isinstance(each, str):
                    await self._websocket.send_text(each)
                else:
                    await self._websocket.send_bytes(each)
        except TimeoutError as error:
            raise SlowReader from error
        except WebSocketDisconnect as error:
            raise SlowReader from error


def _is_logged(record: logging.LogRecord) -> bool:
    text = str(record.msg)  # `msg` may be an exception.
    return not any(each in text for each in _HIDDEN_LOG_TEXTS)


# Uvicorn logs each refused websocket as an error of the application, so clients without a key
# could fill the log. Darkroom logs refused keys itself. At level INFO, Uvicorn also logs the path
# and query of each websocket, which may contain a key.
logging.getLogger("uvicorn.error").addFilter(_is_logged)


@router.websocket(twin("/ws"))
async def websocket(websocket: WebSocket) -> None:
    """Serve a websocket. Errors before `accept` are answered like the errors of a request.

    Raises KeyRefused, RateExceeded, TooManyStreams and the errors of `Broadcaster.watch_owner`.
    """
    replica = replica_of(websocket)
    key = await _caller(websocket, replica.callers)
    await _converse(websocket, replica.job_access, key)


async def _caller(websocket: WebSocket, callers: Callers) -> ApiKey:
    key = await protocol_caller(websocket)
    callers.rates.take(key)
    require_scope(key, Scope.READ)
    return key


async def _converse(websocket: WebSocket, access: JobAccess, key: ApiKey) -> None:
    asked = websocket.query_params.get("clientId", "")
    client_id = asked if asked and CLIENT_ID.fullmatch(asked) else uuid4().hex
    server = websocket.scope.get("server")
    watching = access.live.streams.watch_owner(key.owner, Filter(), after=None, server=server)
    async with watching as listener:
        await websocket.accept()
        session = Session(
            websocket,
            access,
            owner=key.owner,
            client_id=client_id,
            key_check=key_check(websocket, key),
        )
        code = await session.run(listener)
    if websocket.application_state is WebSocketState.CONNECTED:
        # These errors are ignored, because the client may have disconnected.
        with suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(_CLOSE_S):
                await websocket.close(code)
