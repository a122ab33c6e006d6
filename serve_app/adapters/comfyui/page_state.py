"""What ComfyUI's page asks for as it loads, and there is none of here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import READ

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
