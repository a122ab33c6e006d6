"""One websocket of a client: what is sent on it, in which order, and until when."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from events.errors import DatabaseUnavailable, JobUnreadable, LogUnavailable, ReadTimeout
from events.job import Job
from events.types import Cancelled, Completed, Erased, Event, Failed, Submitted
from events.wire.progress import JobProgress
from serve_app.adapters.comfyui.catalogue import server_features
from serve_app.adapters.comfyui.files import class_of, media_type_of, outputs_of
from serve_app.adapters.comfyui.listening.messages import (
    Message,
    executing,
    message,
    of_job,
    picture,
)
from serve_app.adapters.comfyui.listening.watched import WatchedJobs
from serve_app.adapters.comfyui.prompts import status
from serve_app.adapters.comfyui.reading import caught_up, open_jobs, remaining
from serve_app.adapters.comfyui.records import error_of, prompt_of
from serve_app.job_state import current_job
from serve_app.live.listener import Listener, Passing
from serve_app.refusals import NoTurn
from serve_app.replica import Replica
from serve_app.sending.timed_stream import SlowReader
from storage.images import ImageStoreError

NORMAL, GOING_AWAY, POLICY, TOO_LARGE, TRY_AGAIN_LATER = 1000, 1001, 1008, 1009, 1013
"""Codes of a close (RFC 6455, section 7.4.1, and its registry)."""
_MOST_MESSAGES = 200
"""Of the client, between two looks at its key. It has next to nothing to say."""
_STATUS_PERIOD_S = 0.25
_WEBSOCKET_OUTPUTS = frozenset({"SaveImageWebsocket", "ETN_SendImageWebSocket"})
_AWAY = (DatabaseUnavailable, LogUnavailable, ReadTimeout, JobUnreadable)


class Session:
    def __init__(
        self,
        websocket: WebSocket,
        replica: Replica,
        *,
        owner: str,
        client_id: str,
        may_go_on: Callable[[], Awaitable[bool]],
    ) -> None:
        self._websocket = websocket
        self._replica = replica
        self._owner = owner
        self._client_id = client_id
        self._may_go_on = may_go_on
        self._settings = replica.services.http_settings
        self._jobs = WatchedJobs(client_id)
        self._heard = 0
        self._position = 0
        """Of the last event after which the number of open jobs may be another one."""
        self._status_at = math.inf
        """When that is told: a burst is told once."""

    async def run(self, listener: Listener) -> int:
        """Until either side ends it. Returns the code of the close."""

        def note(job_id: str, said: JobProgress) -> None:
            if self._jobs.note_progress(job_id, said):
                listener.put_passing(job_id, Passing.PROGRESS, b"")

        progress = self._replica.services.progress
        progress.listeners.append(note)
        hearing = asyncio.create_task(self._hear())
        telling = asyncio.create_task(self._tell(listener))
        try:
            done, _ = await asyncio.wait((hearing, telling), return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except SlowReader:
            return TRY_AGAIN_LATER
        except _AWAY:
            return TRY_AGAIN_LATER
        finally:
            progress.listeners.remove(note)
            for task in (hearing, telling):
                task.cancel()
            await asyncio.gather(hearing, telling, return_exceptions=True)

    # What the client says.

    async def _hear(self) -> int:
        while True:
            said = await self._websocket.receive()
            if said["type"] == "websocket.disconnect":
                return NORMAL
            self._heard += 1
            text = said.get("text")
            if len(text or said.get("bytes") or b"") > self._settings.max_websocket_message_bytes:
                return TOO_LARGE
            if self._heard > _MOST_MESSAGES:
                return POLICY
            if text is not None:
                await self._take(text)

    async def _take(self, text: str) -> None:
        """Of all messages only the one with feature flags means something here."""
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(said, dict) or said.get("type") != "feature_flags":
            return
        flags = said.get("data")
        self._jobs.has_metadata = (
            isinstance(flags, dict) and flags.get("supports_preview_metadata") is True
        )
        await self._send(message("feature_flags", **server_features(self._replica)))

    # What it is told.

    async def _tell(self, listener: Listener) -> int:
        await self._begin(listener)
        now = asyncio.get_running_loop().time
        keep_alive_s = self._settings.stream_keep_alive_s
        check_at = now() + keep_alive_s
        while True:
            pause_s = max(min(check_at, self._status_at) - now(), 0.0)
            if (news := await listener.next(pause_s)) is None:
                return GOING_AWAY
            for live in news[0]:
                async for each in self._of(live.event):
                    await self._send(each)
            for each in self._jobs.told():
                await self._send(each)
            if now() >= self._status_at:
                await self._send_status()
            if now() >= check_at:
                check_at = now() + keep_alive_s
                self._heard = 0
                if not await self._may_go_on():
                    return POLICY

    async def _begin(self, listener: Listener) -> None:
        """What is open already was stored before the listener began: nothing is missed."""
        await caught_up(self._replica, listener.after)
        for job in await open_jobs(self._replica, self._owner):
            if job.submitted.client_id == self._client_id:
                self._jobs.add(job.id)
                if job.is_attempted:
                    self._jobs.note_progress(job.id, self._known_progress(job))
        count = await remaining(self._replica, self._owner)
        await self._send(message("status", status=status(count), sid=self._client_id))
        for each in self._jobs.told():
            await self._send(each)

    def _known_progress(self, job: Job) -> JobProgress:
        return self._replica.services.progress.get(job.id) or JobProgress(done=0, total=1)

    async def _of(self, event: Event) -> AsyncGenerator[Message]:
        if isinstance(event.data, Submitted | Completed | Failed | Cancelled | Erased):
            self._position = event.position
            if self._status_at == math.inf:
                self._status_at = asyncio.get_running_loop().time() + _STATUS_PERIOD_S
        for each in self._jobs.take(event):
            yield each
        if self._jobs.is_end(event):
            for each in self._jobs.told():
                yield each
            async for message in self._end(event):
                yield message
            self._jobs.forget(event.job_id)

    async def _end(self, event: Event) -> AsyncGenerator[Message]:
        id, was_started = event.job_id, self._jobs.has_started(event.job_id)
        job = await current_job(self._replica.services, id)
        if job is None or job.erased:
            yield executing(id, None)
            return
        node, class_type = self._jobs.place(id)
        if isinstance(event.data, Completed):
            for each in self._jobs.begin(id):
                yield each
            async for each in self._results(job):
                yield each
            yield of_job("execution_success", id)
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
        for node, output in outputs_of(job.images, prompt, job_id=job.id).items():
            if class_of(node, prompt) in _WEBSOCKET_OUTPUTS:
                yield executing(job.id, node)
                await self._send_pictures(job, node)
            yield message("executed", node=node, display_node=node, output=output, prompt_id=job.id)

    async def _send_pictures(self, job: Job, node: str) -> None:
        """Those that were asked for on the websocket itself. Raises SlowReader."""
        for image in job.images:
            if image.node == node:
                # `executed` names it all the same.
                with suppress(ImageStoreError, NoTurn):
                    async with self._replica.bodies.room(self._owner, image.size_bytes):
                        data = await self._replica.services.images.get(image.key)
                        await self._send(picture(data, media_type_of(image)))

    async def _send_status(self) -> None:
        """Once the rows have what happened: clients read their lists when they are told this."""
        self._status_at = math.inf
        await caught_up(self._replica, self._position)
        count = await remaining(self._replica, self._owner)
        await self._send(message("status", status=status(count)))

    async def _send(self, each: Message) -> None:
        """Raises SlowReader."""
        try:
            async with asyncio.timeout(self._settings.stream_send_timeout_s):
                if isinstance(each, str):
                    await self._websocket.send_text(each)
                else:
                    await self._websocket.send_bytes(each)
        except TimeoutError as error:
            raise SlowReader from error
        except WebSocketDisconnect as error:
            raise SlowReader from error
