"""Bodies as ComfyUI's clients send them: JSON under any media type, or nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request

from serve_app.api_error import ApiError
from serve_app.replica import Replica

MOST_IDS = 1000


@asynccontextmanager
async def json_body(
    replica: Replica, request: Request, owner: str
) -> AsyncGenerator[tuple[bytes, Any]]:
    """The body, and the same parsed. Its turn lasts as long as the context.

    Python's own client says that JSON is a form, and ComfyUI never looks.
    """
    async with replica.bodies.json(request, owner, of_any_type=True) as read:
        yield read


async def members(replica: Replica, request: Request, owner: str) -> dict[str, Any]:
    """Those of an object; without a body there are none. Raises ApiError as `Bodies.json`."""
    if not _has_body(request):
        return {}
    async with json_body(replica, request, owner) as (_, content):
        if not isinstance(content, dict):
            raise invalid("The body is no object.")
        return content


def ids_in(said: dict[str, Any], name: str) -> list[str]:
    """Raises ApiError 400."""
    ids = said.get(name, [])
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise invalid(f"{name} is no list of ids.")
    if len(ids) > MOST_IDS:
        raise invalid(f"{name} has more than {MOST_IDS} ids.")
    return ids


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)


def _has_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
