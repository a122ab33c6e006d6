"""Jobs of Comfy API v2: their bodies, their event streams and their routes."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import format_sse_event

from engine.interface import GraphInvalid, is_of_editor
from events.decisions import Cancel
from events.errors import ServiceError
from events.ids import is_job_id
from events.job import Job
from events.job_progress import JobProgress
from events.log import utc_now
from events.result import failure_code
from events.store.records import DEFAULT_ENDPOINT, ApiKey
from events.types import Cancelled, Completed, Failed, Flavour, ImageStored
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.answers import json_answer
from serve_app.auth import key_check
from serve_app.error_responses import ApiError
from serve_app.live.listener import Listener
from serve_app.live.messages import KEEP_ALIVE
from serve_app.live.progress import Newest, newest_of
from serve_app.live.queue_positions import QueuePosition
from serve_app.live.streams import POSITION_PERIOD_S, EventStream
from serve_app.protocols.comfy_v2.assets import (
    PREFIX,
    image_url_expires_at,
    job_expires_at,
    job_links,
    name_uploads,
    output_id,
)
from serve_app.protocols.comfy_v2.errors import invalid_workflow
from serve_app.protocols.credentials import CancelProtocolKey, GenerateProtocolKey, ReadProtocolKey
from serve_app.protocols.notes import note_members
from serve_app.replica import JobAccess, JobAccessDep, SubmissionDep
from serve_app.routes.generate import EndpointId, IdempotencyKey, traceparent_of
from storage.file_names import PNG, SAFETENSORS, kind_of

_OUTPUT_NODES = ("Save", "Preview")
_MEMBERS = {"workflow", "extra_data"}

router = APIRouter(prefix=f"{PREFIX}/jobs", include_in_schema=False)


def status_of(job: Job) -> str:
    match job.end:
        case Completed():
            return "succeeded"
        case Cancelled():
            return "canceled"
        case Failed():
            return "failed"
    if job.cancel_requested:
        return "canceling"
    return "running" if job.has_running_attempt else "queued"


async def job_body_with_position(access: JobAccess, job: Job) -> dict[str, Any]:
    """Return the body of a job with its queue position. `job` must be read with its request."""
    return job_body(access, job, await access.live.queue_positions.of(job))


def job_body(access: JobAccess, job: Job, place: QueuePosition | None = None) -> dict[str, Any]:
    """Return the body of a job, which must be read with its request."""
    runs = job.end is None and job.started_at is not None
    progress = access.live.progress.get(job.id) if runs else None
    return {
        "id": job.id,
        "status": status_of(job),
        "created_at": job.submitted_at.isoformat(),
        "started_at": _time(job.started_at),
        "completed_at": _time(job.ended_at),
        "expires_at": job_expires_at(access, job).isoformat(),
        "queue_position": None if place is None else place.position,
        "progress": progress_body(job, progress),
        "outputs": [output(access, job, image) for image in job.images],
        "error": _error(job),
        "metrics": {
            "queue_ms": _ms(job.submitted_at, job.started_at),
            "execution_ms": _ms(job.started_at, job.ended_at),
        },
        "urls": job_links(access, job),
        **note_members(job),
    }


def progress_body(job: Job, progress: JobProgress | None) -> dict[str, Any] | None:
    """Return the `progress` object of a job; None if no progress is known.

    `nodes_done` is estimated from the fraction of steps, because the number of finished nodes is
    unknown.
    """
    total = len(workflow_of(job)) or 1
    if isinstance(job.end, Completed):
        return {"value": 1.0, "nodes_done": total, "nodes_total": total}
    if progress is None:
        return None
    shown = f"{progress.class_type or 'step'} {progress.done}/{progress.total}"
    return {
        "value": progress.fraction,
        "nodes_done": min(int(progress.fraction * total), total - 1),
        "nodes_total": total,
        "current_node": progress.node,
        "current_node_class": progress.class_type,
        "step": progress.done,
        "steps": progress.total,
        "message": shown,
    }


def output(access: JobAccess, job: Job, image: ImageStored) -> dict[str, Any]:
    return {
        "node_id": image.node or _first_output_node_id(job),
        "name": f"darkroom_{image.name}",
        "type": _type_of(image),
        "content_type": image.media_type or PNG,
        "size_bytes": image.size_bytes,
        "id": output_id(job, image),
        "hash": None,
        "url": access.files.url_for(job.id, image),
        "url_expires_at": image_url_expires_at(access, job).isoformat(),
        "job_id": job.id,
    }


def _type_of(image: ImageStored) -> str:
    """Return one of the types of the API, which has none for models."""
    if image.media_type == SAFETENSORS:
        return "latent"
    kind = kind_of(image.media_type)
    return "file" if kind == "model" else kind


def workflow_of(job: Job) -> dict[str, Any]:
    """Return the graph of a job. It is empty for a job of the diffusion flavour."""
    workflow = job.submitted.request.get("prompt")
    return workflow if isinstance(workflow, dict) else {}


def _first_output_node_id(job: Job) -> str:
    """Return the first output node. Older versions recorded no node with an image."""
    nodes = workflow_of(job).items()
    saves = (id for id, node in nodes if str(node.get("class_type")).startswith(_OUTPUT_NODES))
    return next(saves, "")


def _error(job: Job) -> dict[str, Any] | None:
    """Return the error of a failed job. A cancelled job has no error."""
    if not isinstance(job.end, Failed):
        return None
    return {"code": failure_code(job.end), "message": job.end.message}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _ms(start: datetime | None, end: datetime | None) -> int | None:
    return int((end - start).total_seconds() * 1000) if start and end else None


def job_stream(access: JobAccess, request: Request, key: ApiKey, job: Job) -> EventStream:
    """Return the event stream of a job.

    Opening the stream raises TooManyStreams and the errors of `Streams.watch`.
    """

    @asynccontextmanager
    async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
        board = access.live.progress
        with (
            access.live.streams.count_stream(key.owner, request.scope.get("server")),
            newest_of(board, job.id) as newest,
        ):
            newest.progress = board.get(job.id)
            async with access.live.streams.watch(job) as (listener, _):
                yield _Stream(access, request, key, job).messages(listener, newest)

    timeout_s = access.live.streams.send_timeout_s
    return EventStream(open_stream, send_timeout_s=timeout_s)


class _ServerEnds(Exception):
    """The listener has ended, because the server stops."""


@dataclass
class _Stream:
    access: JobAccess
    request: Request
    key: ApiKey
    job: Job
    _sent_status: dict[str, Any] = field(default_factory=dict, init=False)
    """The status that was sent last."""
    _outputs: set[int] = field(default_factory=set, init=False)

    async def messages(self, listener: Listener, newest: Newest) -> AsyncGenerator[bytes]:
        """Yield the messages of the stream. Raises SlowReader.

        A service error ends the stream without a message. Clients must read the job after the end.
        """
        streams = self.access.live.streams
        go_on = key_check(self.request, self.key)
        now = asyncio.get_running_loop().time
        end_at = now() + streams.max_s
        check_at = now()
        try:
            while now() < end_at:
                self.job = await self.access.jobs.owned(self.job.id, self.key)
                for message in await self._changes():
                    yield message
                if self.job.end is not None:
                    return
                if now() >= check_at:
                    check_at = now() + streams.keep_alive_s
                    if not await go_on():
                        return
                    yield KEEP_ALIVE
                async for message in self._unstored_messages(listener, newest, until=check_at):
                    yield message
        except (ServiceError, _ServerEnds):
            return

    async def _unstored_messages(
        self, listener: Listener, newest: Newest, *, until: float
    ) -> AsyncGenerator[bytes]:
        """Yield unstored messages until an event is stored or the queue position may have changed.

        Raises SlowReader, _ServerEnds.
        """
        now = asyncio.get_running_loop().time
        until = min(until, now() + POSITION_PERIOD_S)
        while True:
            if message := self._unstored_message(newest):
                yield message
            news = await listener.next(max(until - now(), 0))
            if news is None:
                raise _ServerEnds
            if news[0] or now() >= until:
                return

    async def _changes(self) -> list[bytes]:
        """Return messages for new results, then for the status if it has changed."""
        found = [
            _message("output", output(self.access, self.job, image))
            for image in self.job.images
            if image.index not in self._outputs
        ]
        self._outputs |= {image.index for image in self.job.images}
        place = await self.access.live.queue_positions.of(self.job)
        position = None if place is None else place.position
        status = {"status": status_of(self.job), "queue_position": position}
        if status != self._sent_status:
            self._sent_status = status
            found.append(_message("status", status))
        return found

    def _unstored_message(self, newest: Newest) -> bytes:
        progress, preview = newest.take()
        message = b""
        if (shown := progress_body(self.job, progress)) is not None:
            message += _message("progress", shown)
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


@router.post("", status_code=201)
async def post_job(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Submit a workflow. Unlike in the contract, a repeated request gets the same job."""
    began = utc_now()
    async with access.bodies.json(request, key.owner) as (body, content):
        workflow = _workflow(content)
        await name_uploads(submission, access, key, workflow)
        try:
            job = await submission.acceptance.accept(
                GenerateRequest(
                    flavour=Flavour.WORKFLOW,
                    key=key,
                    endpoint=endpoint,
                    body=body,
                    content={"prompt": workflow, "extra_data": content.get("extra_data")},
                    preview=True,
                    idempotency_key=idempotency_key,
                    traceparent=traceparent_of(request),
                ),
                began=began,
            )
        except GraphInvalid as error:
            raise invalid_workflow(error) from error
    return job_body(access, job)


@router.get("")
async def list_jobs(
    request: Request,
    key: ReadProtocolKey,
    access: JobAccessDep,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query()] = None,
) -> Response:
    """List the caller's jobs, newest first.

    Jobs have no labels, so a filter by a label finds no job.
    """
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(
            400, "invalid_cursor", "The cursor is not valid. Use the cursor of an earlier answer."
        )
    if any(name.startswith("metadata[") for name in request.query_params):
        return JSONResponse({"jobs": []})
    async with access.list_turns.acquire(key.owner):
        found = await access.read_model.jobs(key.owner, limit=limit + 1, before=cursor)
        return await json_answer(lambda: _page(found, limit))


def _page(found: list[Job], limit: int) -> dict[str, Any]:
    page = found[:limit]
    jobs = [
        {
            "id": job.id,
            "status": status_of(job),
            "create_time": job.submitted_at.isoformat(),
            "update_time": (job.ended_at or job.started_at or job.submitted_at).isoformat(),
            "metadata": {},
        }
        for job in page
    ]
    return {"jobs": jobs} | ({"next_cursor": page[-1].id} if len(found) > limit else {})


@router.get("/{id}")
async def get_job(id: str, key: ReadProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    return await job_body_with_position(access, await access.jobs.owned(id, key))


@router.get("/{id}/workflow")
async def get_job_workflow(id: str, key: ReadProtocolKey, access: JobAccessDep) -> Response:
    """Return the recorded graph, with drawn seeds and the names of uploads."""
    async with access.list_turns.acquire(key.owner):
        job = await access.jobs.owned(id, key)
        return await json_answer(lambda: {"workflow": workflow_of(job), "format": "api"})


@router.get("/{id}/events")
async def get_job_events(
    request: Request, id: str, key: ReadProtocolKey, access: JobAccessDep
) -> Response:
    job = await access.jobs.owned(id, key)
    return job_stream(access, request, key, job)


@router.post("/{id}/cancel")
async def cancel_job(id: str, key: CancelProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    """Cancel a job. A repeated request changes nothing."""
    job = await access.jobs.owned(id, key)
    return await job_body_with_position(access, await access.jobs.end(Cancel(), job))


def _workflow(content: Any) -> dict[str, Any]:
    """Return the workflow in a body. Raises ApiError 422."""
    workflow = content.get("workflow") if isinstance(content, dict) else None
    if not isinstance(workflow, dict):
        raise ApiError(422, "invalid_workflow", "The body must have the object `workflow`.")
    if is_of_editor(workflow):
        message = (
            "This is a file of ComfyUI's editor. Export the workflow in the API format and send "
            "that file."
        )
        raise ApiError(422, "workflow_format_ui", message)
    if "metadata" in content:
        raise ApiError(422, "metadata_not_supported", "Labels of jobs are not supported.")
    if unknown := content.keys() - _MEMBERS:
        raise ApiError(422, "invalid_request", f"{min(unknown)[:100]!r} is not supported.")
    return workflow
