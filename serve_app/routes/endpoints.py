"""Routes of endpoints, for owners and administrators: list, make, show, change, delete."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from events.errors import LogUnavailable
from events.store.records import ApiKey, StoredEndpoint
from serve_app.auth import EndpointsKey
from serve_app.endpoints.administration import EndpointAdministration
from serve_app.endpoints.answers import EndpointDetail, EndpointInfo, EndpointPage, detail
from serve_app.endpoints.bodies import CHANGE_BODY, CREATE_BODY, EndpointChanges, NewEndpoint
from serve_app.openapi.error_responses import documented
from serve_app.replica import Replica, ReplicaDep
from settings.dispatch import LONGEST_DRAIN_S

logger = logging.getLogger(__name__)

router = APIRouter(
    prefix="/v1/endpoints",
    tags=["endpoints"],
    responses=documented(400, 401, 403, 429, 500, 503),
)


@router.get("", response_model_exclude_none=True)
async def list_endpoints(key: EndpointsKey, replica: ReplicaDep) -> EndpointPage:
    """The endpoints of the key's owner; an administrator's key shows all."""
    found = await EndpointAdministration(replica.services).all(key)
    return EndpointPage(endpoints=[EndpointInfo.of(stored) for stored in found])


@router.post(
    "",
    status_code=201,
    response_model_exclude_none=True,
    responses=documented(408, 409, 413, 415),
    openapi_extra={"requestBody": CREATE_BODY},
)
async def create_endpoint(
    request: Request, response: Response, key: EndpointsKey, replica: ReplicaDep
) -> EndpointInfo:
    """Make an endpoint. It takes jobs at once; its workers come with them."""
    body = await replica.bodies.model(request, key.owner, NewEndpoint)
    administration = EndpointAdministration(replica.services)
    stored = await administration.create(key, body.id, body.given(), owner=body.owner)
    _note(replica, "create", stored, key)
    response.headers["Location"] = f"{router.prefix}/{body.id}"
    return EndpointInfo.of(stored)


@router.get("/{id}", response_model_exclude_none=True, responses=documented(404))
async def show_endpoint(id: str, key: EndpointsKey, replica: ReplicaDep) -> EndpointDetail:
    """An endpoint with its workers and its queue."""
    services = replica.services
    stored = await EndpointAdministration(services).one(key, id)
    queued = None
    with suppress(LogUnavailable):
        queued = await services.queue.depth(id)
    status = await replica.acceptance.endpoints.status(id)
    return detail(stored, queued=queued, status=status)


@router.patch(
    "/{id}",
    response_model_exclude_none=True,
    responses=documented(404, 408, 409, 413, 415),
    openapi_extra={"requestBody": CHANGE_BODY},
)
async def change_endpoint(
    id: str, request: Request, key: EndpointsKey, replica: ReplicaDep
) -> EndpointInfo:
    """Change members, or drain it; what is absent stays.

    Jobs that were accepted before keep the limits and times that they were accepted with. Workers
    that have to be made anew are replaced one by one.
    """
    body = await replica.bodies.model(request, key.owner, EndpointChanges)
    administration = EndpointAdministration(replica.services)
    stored = await administration.change(key, id, body.given(), revision=body.revision)
    _note(replica, "change", stored, key)
    return EndpointInfo.of(stored)


@router.delete(
    "/{id}", status_code=202, response_model_exclude_none=True, responses=documented(404, 409)
)
async def delete_endpoint(
    id: str,
    key: EndpointsKey,
    replica: ReplicaDep,
    *,
    drain_s: Annotated[
        float | None,
        Query(
            ge=0,
            le=LONGEST_DRAIN_S,
            description="How many seconds it works off the jobs that it has; 300 unless the "
            "service is set up otherwise. A repeat can only shorten it",
        ),
    ] = None,
) -> EndpointInfo:
    """Delete an endpoint. It takes no more jobs, works off those that it has, and is gone then.

    Jobs that still wait when its time is over fail with a message; those that run end as usual.
    """
    stored = await EndpointAdministration(replica.services).delete(key, id, drain_s=drain_s)
    _note(replica, "delete", stored, key)
    return EndpointInfo.of(stored)


def _note(replica: Replica, change: str, stored: StoredEndpoint, key: ApiKey) -> None:
    id = stored.endpoint.id
    replica.acceptance.endpoints.forget(id)
    fields = {"action": f"{change}_endpoint", "endpoint": id, "revision": stored.revision}
    logger.info("endpoints administered", extra=fields | {"by_key_id": key.id})
