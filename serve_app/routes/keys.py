"""Routes with which administrators list, create, show, change, revoke and rotate API keys."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from events.log import utc_now
from events.store.records import ApiKey
from serve_app.access.api_keys import GRACE_S, KEY_ID, mint, rotate
from serve_app.auth import AdminKey
from serve_app.key_schemas import (
    CHANGE_BODY,
    CREATE_BODY,
    KeyChanges,
    KeyInfo,
    KeyPage,
    NewKey,
    NewKeyInfo,
    StoredName,
)
from serve_app.openapi.document import documented
from serve_app.refusals import KeyNotFound
from serve_app.replica import Administration, AdministrationDep
from settings.keys import LONGEST_GRACE_S
from storage.service_secret import webhook_secret

logger = logging.getLogger(__name__)

router = APIRouter(
    prefix="/v1/keys",
    tags=["keys"],
    responses=documented(400, 401, 403, 500, 503),
)


@router.get("", response_model_exclude_none=True)
async def list_keys(
    _admin: AdminKey,
    administration: AdministrationDep,
    *,
    owner: Annotated[StoredName | None, Query(description="Only the keys of this owner")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        str | None, Query(pattern=KEY_ID, description="`next_cursor` of the previous page")
    ] = None,
) -> KeyPage:
    """List the keys of all owners, oldest first, without their secrets."""
    found = await administration.keys.all(owner=owner, limit=limit + 1, after=cursor)
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
    request: Request, response: Response, admin: AdminKey, administration: AdministrationDep
) -> NewKeyInfo:
    """Create a key. Only this answer contains the key and the secret that signs its callbacks."""
    body = await administration.bodies.model(request, admin.owner, NewKey)
    text, key = mint(
        body.owner,
        body.name or body.owner,
        body.scopes,
        created_at=utc_now(),
        expires_at=body.expires_at,
        limits=body.limits.values(),
    )
    await administration.keys.add(key)
    _log("create", key.id, admin)
    return _shown_once(administration, response, text, key)


@router.get("/{id}", response_model_exclude_none=True, responses=documented(404))
async def show_key(id: str, _admin: AdminKey, administration: AdministrationDep) -> KeyInfo:
    """Show a key without its secret."""
    return KeyInfo.of(await _existing_key(administration, id), now=utc_now())


@router.patch(
    "/{id}",
    response_model_exclude_none=True,
    responses=documented(404, 408, 413, 415),
    openapi_extra={"requestBody": CHANGE_BODY},
)
async def change_key(
    id: str, request: Request, admin: AdminKey, administration: AdministrationDep
) -> KeyInfo:
    """Change the name, scopes, expiry or limits of a key. Absent members stay unchanged."""
    body = await administration.bodies.model(request, admin.owner, KeyChanges)
    key = await _existing_key(administration, id)
    if columns := body.columns():
        key = await administration.keys.change(id, **columns) or key
        _note_change(administration, "change", id, admin)
    return KeyInfo.of(key, now=utc_now())


@router.delete("/{id}", response_model_exclude_none=True, responses=documented(404))
async def revoke_key(id: str, admin: AdminKey, administration: AdministrationDep) -> KeyInfo:
    """Revoke a key. All replicas refuse the key within 10 s. A repeated request changes nothing."""
    await _existing_key(administration, id)
    if await administration.keys.revoke(id, utc_now()):
        _note_change(administration, "revoke", id, admin)
    return KeyInfo.of(await _existing_key(administration, id), now=utc_now())


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
    administration: AdministrationDep,
    *,
    grace_s: Annotated[
        float | None,
        Query(
            ge=0,
            le=LONGEST_GRACE_S,
            description="Seconds for which the old key still works. Default: 7 days, unless the "
            "service has another setting",
        ),
    ] = None,
) -> NewKeyInfo:
    """Create a key with the same owner, name, scopes and limits. The old key expires later."""
    await _existing_key(administration, id)
    grace = timedelta(seconds=GRACE_S if grace_s is None else grace_s)
    text, key = await rotate(administration.keys, id, grace=grace, now=utc_now())
    _note_change(administration, "rotate", id, admin)
    return _shown_once(administration, response, text, key)


async def _existing_key(administration: Administration, id: str) -> ApiKey:
    key = await administration.keys.get(id) if re.fullmatch(KEY_ID, id) else None
    if key is None:
        raise KeyNotFound
    return key


def _shown_once(
    administration: Administration, response: Response, text: str, key: ApiKey
) -> NewKeyInfo:
    response.headers["Location"] = f"{router.prefix}/{key.id}"
    response.headers["Cache-Control"] = "no-store"
    secret = webhook_secret(administration.secret, key.id)
    return NewKeyInfo.of(key, now=utc_now(), key=text, webhook_secret=secret)


def _note_change(administration: Administration, change: str, key_id: str, admin: ApiKey) -> None:
    administration.authenticator.forget(key_id)
    _log(change, key_id, admin)


def _log(change: str, key_id: str, admin: ApiKey) -> None:
    fields = {"action": f"{change}_key", "key_id": key_id, "by_key_id": admin.id}
    logger.info("api keys administered", extra=fields)
