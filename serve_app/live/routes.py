"""Routes of event streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from events.ids import ENDPOINT_ID
from events.result import Status
from events.streams.log_streams import PLACE, parse_place
from serve_app.auth import ReadKey, may_go_on
from serve_app.job_state import owned_job
from serve_app.live.event_stream import EventStream
from serve_app.live.listener import Filter
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep

_LARGEST = 2**63 - 1
_LAST_EVENT_ID = "Last-Event-ID"

LastEventId = Annotated[
    int | None,
    Header(
        alias=_LAST_EVENT_ID,
        ge=0,
        le=_LARGEST,
        description="The `id` that was received last: what follows it is sent",
    ),
]
LastPlace = Annotated[
    str | None,
    Header(
        alias=_LAST_EVENT_ID,
        pattern=PLACE,
        description="The `id` that was received last: what follows it is sent",
    ),
]

router = APIRouter(
    tags=["events"],
    responses={
        # Without its media type, for which generators of clients leave a route out.
        200: {"description": f"Server-Sent Events (`{EventStream.media_type}`), as they happen"},
        **documented(400, 401, 403, 500, 503),
    },
    default_response_class=Response,
)


@router.get(
    "/v1/jobs/{id}/events",
    responses={204: {"description": "The job has ended, and nothing follows"}, **documented(404)},
)
async def job_events(
    id: str,
    request: Request,
    key: ReadKey,
    replica: ReplicaDep,
    *,
    last_event_id: LastEventId = None,
) -> Response:
    """What has happened to a job, and what happens until its end, as Server-Sent Events.

    Stored events have their place in the event log as `id`. Progress has none, and is not repeated.
    """
    job = await owned_job(replica.services, id, key, with_request=False)
    after = last_event_id or 0
    if job.end is not None and after >= job.position:
        return Response(status_code=204)
    return replica.streams.of_job(
        job, after=after, may_go_on=may_go_on(request, key), server=request.scope.get("server")
    )


@router.get("/v1/events", responses=documented(410))
async def owner_events(
    request: Request,
    key: ReadKey,
    replica: ReplicaDep,
    *,
    status: Annotated[Status | None, Query(description="0, 1 or 2, of the job by then")] = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    cursor: Annotated[
        str | None,
        Query(pattern=PLACE, description="As `Last-Event-ID`, which counts where both are"),
    ] = None,
    last_event_id: LastPlace = None,
) -> Response:
    """What happens to all jobs of the caller, from now or from a cursor, as Server-Sent Events."""
    after = cursor if last_event_id is None else last_event_id
    return replica.streams.of_owner(
        key.owner,
        Filter(status=status, endpoint=endpoint),
        after=None if after is None else parse_place(after),
        may_go_on=may_go_on(request, key),
        server=request.scope.get("server"),
    )
