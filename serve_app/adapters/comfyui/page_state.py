"""What ComfyUI's page asks for as it loads, beside jobs: of most of it there is none here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from serve_app.adapters.comfyui.bodies import json_body
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import READ, ReadAdapterKey
from serve_app.api_error import ApiError, not_found
from serve_app.replica import ReplicaDep

_SETTINGS: dict[str, Any] = {"Comfy.TutorialCompleted": True}
"""Those of its page with other values than its own. No tour begins at each visit."""
_NO_FILES = "Darkroom keeps no files of ComfyUI's page. Export the workflow instead."
_EMPTY_OBJECTS = (
    "/i18n",
    "/workflow_templates",
    "/global_subgraphs",
    "/internal/folder_paths",
)

router = APIRouter(include_in_schema=False, dependencies=[Depends(READ)])


async def _nothing() -> dict[str, Any]:
    return {}


for _path in _EMPTY_OBJECTS:
    router.add_api_route(twin(_path), _nothing)


@router.get(twin("/users"))
async def users() -> dict[str, Any]:
    """One user, who has the key."""
    return {"storage": "server", "migrated": True}


@router.get(twin("/extensions"))
async def extensions() -> list[str]:
    """No scripts of others: extensions of Darkroom are nodes alone."""
    return []


@router.get(twin("/settings"))
async def settings() -> dict[str, Any]:
    return _SETTINGS


@router.get(twin("/settings/{id}"))
async def setting(id: str) -> Any:
    return _SETTINGS.get(id)


@router.post(twin("/settings"))
@router.post(twin("/settings/{id}"))
async def change_settings(request: Request, key: ReadAdapterKey, replica: ReplicaDep) -> Response:
    """They last as long as the page: none are kept."""
    async with json_body(replica, request, key.owner):
        return Response()


@router.get(twin("/userdata"))
async def list_user_files() -> list[Any]:
    return []


@router.get(twin("/userdata/{path:path}"))
async def read_user_file(path: str) -> Response:
    if path == "user.css":  # the page links it, and logs an error where there is none
        return Response(media_type="text/css")
    raise not_found("There is no such file.")


@router.post(twin("/userdata/{path:path}"))
@router.delete(twin("/userdata/{path:path}"))
async def refuse_user_file() -> Response:
    raise ApiError(403, "forbidden", _NO_FILES)
