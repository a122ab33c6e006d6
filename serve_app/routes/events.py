"""Routes that stream the events of a job or of an owner."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from events.ids import ENDPOINT_ID
from events.result import Status
from serve_app.auth import ReadKey, key_check
from serve_app.live.listener import Filter
from serve_app.live.streams import EventStream
from serve_app.openapi.document import documented
from serve_app.replica import JobAccessDep

_LARGEST = 2**63 - 1
_LAST_EVENT_ID = "Last-Event-ID"

LastEventId = Annotated[
    int | None,
    Header(
        alias=_LAST_EVENT_ID,
        ge=0,
        le=_LARGEST,
        description="The `id` of the last event that the client received. The stream continues "
        "after that event",
    ),
]

router = APIRouter(
    tags=["events"],
    responses={
        # The media type is omitted, because generators of clients would skip the route.
        200: {"description": f"The events as Server-Sent Events (`{EventStream.media_type}`)"},
        **documented(400, 401, 403, 500, 503),
    },
    default_response_class=Response,
)


@router.get(
    "/v1/jobs/{id}/events",
    responses={204: {"description": "The job has ended, and no event follows"}, **documented(404)},
)
async def job_events(
    id: str,
    request: Request,
    key: ReadKey,
    access: JobAccessDep,
    *,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the stored and new events of a job until its end, as Server-Sent Events. The `id` of a
    stored event is its offset in the event log. Messages about progress have no `id` and are not
    sent again.
    """
    job = await access.jobs.owned(id, key, with_request=False)
    after = last_event_id or 0
    if job.end is not None and after >= job.position:
        return Response(status_code=204)
    return access.live.streams.of_job(
        job, after=after, key_check=key_check(request, key), server=request.scope.get("server")
    )


@router.get("/v1/events", responses=documented(410))
async def owner_events(
    request: Request,
    key: ReadKey,
    access: JobAccessDep,
    *,
    status: Annotated[
        Status | None, Query(description="0, 1 or 2: the status of the job after the event")
    ] = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    cursor: Annotated[
        int | None,
        Query(
            ge=0,
            le=_LARGEST,
            description="Like `Last-Event-ID`. If both are sent, `Last-Event-ID` is used",
        ),
    ] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the events of all jobs of the caller, as Server-Sent Events. The stream begins now or
    at a cursor.
    """
    return access.live.streams.of_owner(
        key.owner,
        Filter(status=status, endpoint=endpoint),
        after=cursor if last_event_id is None else last_event_id,
        key_check=key_check(request, key),
        server=request.scope.get("server"),
    )
