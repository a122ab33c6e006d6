"""Routes of API keys, for administrators: list, create, show, change, revoke, rotate."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from events.log import utc_now
from events.store.records import ApiKey
from events.webhook_secret import webhook_secret
from serve_app.access.api_keys import KEY_ID, mint
from serve_app.access.key_bodies import (
    CHANGE_BODY,
    CREATE_BODY,
    KeyChanges,
    KeyInfo,
    KeyPage,
    Name,
    NewKey,
    NewKeyInfo,
)
from serve_app.access.rotation import rotate
from serve_app.auth import AdminKey
from serve_app.openapi.error_responses import documented
from serve_app.refusals import KeyNotFound
from serve_app.replica import Replica, ReplicaDep
from serve_app.services import Services
from settings.keys import LONGEST_GRACE_S

logger = logging.getLogger(__name__)

router = APIRouter(
    prefix="/v1/keys",
    tags=["keys"],
    responses=documented(400, 401, 403, 500, 503),
)


@router.get("", response_model_exclude_none=True)
async def list_keys(
    _admin: AdminKey,
    replica: ReplicaDep,
    *,
    owner: Annotated[Name | None, Query(description="This owner's alone")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        str | None, Query(pattern=KEY_ID, description="`next_cursor` of the page before")
    ] = None,
) -> KeyPage:
    """Every owner's keys, oldest first, without their secrets."""
    found = await replica.services.keys.all(owner=owner, limit=limit + 1, after=cursor)
    next_cursor = found[limit - 1].id if len(found) > limit else None
    now = utc_now()
    keys = [KeyInfo.of(key, now=now) for key in found[:limit]]
    return KeyPage(keys=keys, next_cursor=next_cursor)


@router.post(
    "",
    status_code=201,
    response_model_exclude_none=True,
    responses=documented(408, 413, 415),
    openapi_extra={"requestBody": CREATE_BODY},
)
async def create_key(
    request: Request, response: Response, admin: AdminKey, replica: ReplicaDep
) -> NewKeyInfo:
    """Make a key. Only this answer has it, and the secret that signs its callbacks."""
    services = replica.services
    body = await replica.bodies.model(request, admin.owner, NewKey)
    text, key = mint(
        body.owner,
        body.name or body.owner,
        body.scopes,
        created_at=utc_now(),
        expires_at=body.expires_at,
        limits=body.limits.values(),
    )
    await services.keys.add(key)
    _log("create", key.id, admin)
    return _shown_once(services, response, text, key)


@router.get("/{id}", response_model_exclude_none=True, responses=documented(404))
async def show_key(id: str, _admin: AdminKey, replica: ReplicaDep) -> KeyInfo:
    """A key, without its secret."""
    return KeyInfo.of(await _existing_key(replica.services, id), now=utc_now())


@router.patch(
    "/{id}",
    response_model_exclude_none=True,
    responses=documented(404, 408, 413, 415),
    openapi_extra={"requestBody": CHANGE_BODY},
)
async def change_key(id: str, request: Request, admin: AdminKey, replica: ReplicaDep) -> KeyInfo:
    """Change name, scopes, expiry or limits; what is absent stays."""
    services = replica.services
    body = await replica.bodies.model(request, admin.owner, KeyChanges)
    key = await _existing_key(services, id)
    if columns := body.columns():
        key = await services.keys.change(id, **columns) or key
        _note_change(replica, "change", id, admin)
    return KeyInfo.of(key, now=utc_now())


@router.delete("/{id}", response_model_exclude_none=True, responses=documented(404))
async def revoke_key(id: str, admin: AdminKey, replica: ReplicaDep) -> KeyInfo:
    """Revoke a key; holds on every replica within 10 s. Repeating it changes nothing."""
    services = replica.services
    await _existing_key(services, id)
    if await services.keys.revoke(id, utc_now()):
        _note_change(replica, "revoke", id, admin)
    return KeyInfo.of(await _existing_key(services, id), now=utc_now())


@router.post(
    "/{id}/rotate",
    status_code=201,
    response_model_exclude_none=True,
    responses=documented(404, 409),
)
async def rotate_key(
    id: str,
    response: Response,
    admin: AdminKey,
    replica: ReplicaDep,
    *,
    grace_s: Annotated[
        float | None,
        Query(
            ge=0,
            le=LONGEST_GRACE_S,
            description="Seconds that the old key still works; 7 days unless the service is set "
            "up otherwise",
        ),
    ] = None,
) -> NewKeyInfo:
    """Make a new key of the same owner, name, scopes and limits; the old one ends after a while."""
    services = replica.services
    await _existing_key(services, id)
    grace = timedelta(
        seconds=services.key_settings.rotation_grace_s if grace_s is None else grace_s
    )
    text, key = await rotate(services.keys, id, grace=grace, now=utc_now())
    _note_change(replica, "rotate", id, admin)
    return _shown_once(services, response, text, key)


async def _existing_key(services: Services, id: str) -> ApiKey:
    key = await services.keys.get(id) if re.fullmatch(KEY_ID, id) else None
    if key is None:
        raise KeyNotFound
    return key


def _shown_once(services: Services, response: Response, text: str, key: ApiKey) -> NewKeyInfo:
    response.headers["Location"] = f"{router.prefix}/{key.id}"
    response.headers["Cache-Control"] = "no-store"
    secret = webhook_secret(services.secret, key.id)
    return NewKeyInfo.of(key, now=utc_now(), key=text, webhook_secret=secret)


def _note_change(replica: Replica, change: str, key_id: str, admin: ApiKey) -> None:
    replica.authenticator.forget(key_id)
    _log(change, key_id, admin)


def _log(change: str, key_id: str, admin: ApiKey) -> None:
    fields = {"action": f"{change}_key", "key_id": key_id, "by_key_id": admin.id}
    logger.info("api keys administered", extra=fields)
