"""Routes with which owners and administrators list, create, show, change and delete endpoints."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from events.errors import LogUnavailable
from events.store.records import ApiKey, StoredEndpoint
from serve_app.auth import EndpointsKey
from serve_app.endpoints.schemas import (
    CHANGE_BODY,
    CREATE_BODY,
    EndpointChanges,
    EndpointDetail,
    EndpointInfo,
    EndpointPage,
    NewEndpoint,
    detail,
)
from serve_app.openapi.document import documented
from serve_app.replica import Administration, AdministrationDep

logger = logging.getLogger(__name__)

_LONGEST_DRAIN_S = 86400.0
"""The longest drain time of a deleted endpoint, in seconds."""

router = APIRouter(
    prefix="/v1/endpoints",
    tags=["endpoints"],
    responses=documented(400, 401, 403, 429, 500, 503),
)


@router.get("", response_model_exclude_none=True)
async def list_endpoints(key: EndpointsKey, administration: AdministrationDep) -> EndpointPage:
    """List the endpoints of the key's owner, or all endpoints with an administrator's key."""
    found = await administration.endpoints.all(key)
    return EndpointPage(endpoints=[EndpointInfo.of(stored) for stored in found])


@router.post(
    "",
    status_code=201,
    response_model_exclude_none=True,
    responses=documented(408, 409, 413, 415),
    openapi_extra={"requestBody": CREATE_BODY},
)
async def create_endpoint(
    request: Request, response: Response, key: EndpointsKey, administration: AdministrationDep
) -> EndpointInfo:
    """Create an endpoint. The endpoint accepts jobs at once. Its workers start when jobs wait."""
    body = await administration.bodies.model(request, key.owner, NewEndpoint)
    stored = await administration.endpoints.create(key, body.id, body.given(), owner=body.owner)
    _note(administration, "create", stored, key)
    response.headers["Location"] = f"{router.prefix}/{body.id}"
    return EndpointInfo.of(stored)


@router.get("/{id}", response_model_exclude_none=True, responses=documented(404))
async def show_endpoint(
    id: str, key: EndpointsKey, administration: AdministrationDep
) -> EndpointDetail:
    """Show an endpoint with its workers and its queue."""
    stored = await administration.endpoints.one(key, id)
    queued = None
    with suppress(LogUnavailable):
        queued = await administration.queue.depth(id)
    status = await administration.endpoint_cache.status(id)
    return detail(stored, queued=queued, status=status)


@router.patch(
    "/{id}",
    response_model_exclude_none=True,
    responses=documented(404, 408, 409, 413, 415),
    openapi_extra={"requestBody": CHANGE_BODY},
)
async def change_endpoint(
    id: str, request: Request, key: EndpointsKey, administration: AdministrationDep
) -> EndpointInfo:
    """Change members of an endpoint, or drain the endpoint. Absent members stay unchanged. Accepted
    jobs keep the limits and times of their acceptance. If the change affects workers, the workers
    are replaced one by one.
    """
    body = await administration.bodies.model(request, key.owner, EndpointChanges)
    stored = await administration.endpoints.change(key, id, body.given(), revision=body.revision)
    _note(administration, "change", stored, key)
    return EndpointInfo.of(stored)


@router.delete(
    "/{id}", status_code=202, response_model_exclude_none=True, responses=documented(404, 409)
)
async def delete_endpoint(
    id: str,
    key: EndpointsKey,
    administration: AdministrationDep,
    *,
    drain_s: Annotated[
        float | None,
        Query(
            ge=0,
            le=_LONGEST_DRAIN_S,
            description="Seconds for which the endpoint finishes its jobs before it is deleted. "
            "Default: 300, unless the service has another setting. A repeated request can only "
            "shorten this time",
        ),
    ] = None,
) -> EndpointInfo:
    """Delete an endpoint. The endpoint accepts no more jobs, finishes its accepted jobs, and is
    then removed. Jobs that still wait when the drain time is over fail with a message. Running jobs
    end as usual.
    """
    stored = await administration.endpoints.delete(key, id, drain_s=drain_s)
    _note(administration, "delete", stored, key)
    return EndpointInfo.of(stored)


def _note(administration: Administration, change: str, stored: StoredEndpoint, key: ApiKey) -> None:
    id = stored.endpoint.id
    administration.endpoint_cache.forget(id)
    fields = {"action": f"{change}_endpoint", "endpoint": id, "revision": stored.revision}
    logger.info("endpoints administered", extra=fields | {"by_key_id": key.id})
