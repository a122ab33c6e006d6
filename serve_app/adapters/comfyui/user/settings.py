"""`/settings`: those of the caller's page, each a file of its own in the database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from events.log import utc_now
from events.store.records import FileKind, Kept
from serve_app.adapters.comfyui.bodies import invalid, json_body
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.comfyui.user.room import too_much
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.replica import Replica, ReplicaDep

_DEFAULTS = {"Comfy.TutorialCompleted": b"true"}
"""Those of its page with other values than its own. No tour begins at the first visit."""
_LONGEST_ID = 200
_MOST_AT_ONCE = 1000

router = APIRouter(include_in_schema=False)


@router.get(twin("/settings"))
async def settings(key: ReadAdapterKey, replica: ReplicaDep) -> Response:
    """Values are kept as JSON, and not parsed to be answered."""
    files = replica.services.user_files
    async with replica.bodies.room(key.owner, 2 * _most_bytes(replica)):
        kept = _DEFAULTS | await files.contents(key.owner, FileKind.SETTING)
        members = (json.dumps(id).encode() + b": " + value for id, value in kept.items())
        content = b"{" + b", ".join(members) + b"}"
    return Response(content, media_type="application/json")


@router.get(twin("/settings/{id}"))
async def setting(id: str, key: ReadAdapterKey, replica: ReplicaDep) -> Response:
    """Null for one that was never set."""
    files = replica.services.user_files
    kept = await files.content(key.owner, FileKind.SETTING, id) if _is_id(id) else None
    content = _DEFAULTS.get(id, b"null") if kept is None else kept
    return Response(content, media_type="application/json")


@router.post(twin("/settings"))
async def change_settings(
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> Response:
    async with json_body(replica, request, key.owner) as (_, changes):
        if not isinstance(changes, dict) or len(changes) > _MOST_AT_ONCE:
            raise invalid(f"The body is no object of up to {_MOST_AT_ONCE} settings.")
        return await _keep(replica, key.owner, changes)


@router.post(twin("/settings/{id}"))
async def change_setting(
    id: str, request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> Response:
    async with json_body(replica, request, key.owner) as (_, value):
        return await _keep(replica, key.owner, {id: value})


async def _keep(replica: Replica, owner: str, changes: Mapping[str, Any]) -> Response:
    """Raises ApiError 400, 413, DatabaseUnavailable."""
    if not all(map(_is_id, changes)):
        raise invalid(f"The id of a setting is 1 to {_LONGEST_ID} printable ASCII characters.")
    values = {id: json.dumps(value).encode() for id, value in changes.items()}
    files, most = replica.services.user_files, _most_bytes(replica)
    kept = await files.put(owner, FileKind.SETTING, values, at=utc_now(), max_bytes=most)
    if kept is Kept.FULL:
        raise too_much(replica)
    return Response()


def _most_bytes(replica: Replica) -> int:
    """Of all settings together, which are read at once."""
    return replica.services.adapter_settings.max_user_file_bytes


def _is_id(id: str) -> bool:
    return 0 < len(id) <= _LONGEST_ID and id.isascii() and id.isprintable()
