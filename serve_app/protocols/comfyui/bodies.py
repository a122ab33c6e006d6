"""Paths, request bodies and errors as ComfyUI's clients expect them.

Each route has several paths: at the root, below `/api`, and below `/comfy` for the page. A body is
JSON with any media type, or empty.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request, Response
from starlette.convertors import Convertor, register_url_convertor

from serve_app.bodies import Bodies
from serve_app.error_responses import ApiError

TWIN = "{twin:comfyui}"
"""The path parameter after the first slash, with which one route matches all of its paths."""
PATH_PREFIXES = ("", "api/", "comfy/api/", "comfy/")
_BASIC = 'Basic realm="Darkroom: any name, and an API key as the password", charset="UTF-8"'
MOST_IDS = 1000


class _Twin(Convertor[str]):
    regex = f"(?:{'|'.join(PATH_PREFIXES[1:])})?"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("comfyui", _Twin())


def twin(path: str) -> str:
    """Return the path of a route for a path such as `/prompt`."""
    return f"/{TWIN}{path.removeprefix('/')}"


def with_basic(error: ApiError) -> Response:
    """Build an error response. A 401 makes browsers request a name and a password from the user."""
    answer = error.response()
    if error.status == 401:
        answer.headers.append("WWW-Authenticate", _BASIC)
    return answer


@asynccontextmanager
async def json_body(
    bodies: Bodies, request: Request, owner: str
) -> AsyncGenerator[tuple[bytes, Any]]:
    """Read and parse a body of any media type, because Python's urllib labels JSON as a form.

    Memory is reserved for the body until the context ends.
    """
    async with bodies.json(request, owner, of_any_type=True) as read:
        yield read


async def members(bodies: Bodies, request: Request, owner: str) -> dict[str, Any]:
    """Read a JSON object from the body; an absent body is an empty object.

    Raises ApiError if the body is not an object, and the errors of `Bodies.json`.
    """
    if not _has_body(request):
        return {}
    async with json_body(bodies, request, owner) as (_, content):
        if not isinstance(content, dict):
            raise invalid("The body must be an object.")
        return content


def ids_in(members: dict[str, Any], name: str) -> list[str]:
    """Return the list of ids in the member `name`. Raises ApiError 400."""
    ids = members.get(name, [])
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise invalid(f"{name} must be a list of ids.")
    if len(ids) > MOST_IDS:
        raise invalid(f"{name} has more than {MOST_IDS} ids.")
    return ids


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid_request", message)


def _has_body(request: Request) -> bool:
    headers = request.headers
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
