"""ComfyUI's web page at `/comfy/`, if its package is installed, and the routes for its state."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import mimetypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from serve_app.error_responses import not_found
from serve_app.protocols.comfyui.bodies import twin
from serve_app.protocols.credentials import READ

PATH = "/comfy"
PACKAGE = "comfyui_frontend_package"
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_MOST_AGE = "public, max-age=31536000, immutable"
_MISSING = b"""<!doctype html><html lang="en"><title>ComfyUI's page</title>
<h1>ComfyUI's page is not installed</h1>
<p>Install it beside Darkroom, and start Darkroom again:</p>
<pre>.venv/bin/pip install --constraint constraints.txt --editable '.[comfyui]'</pre>
"""
_ASSETS = "assets/"
"""The folder of files whose names contain a digest. Such files never change."""

router = APIRouter(include_in_schema=False)
_EMPTY_OBJECTS = (
    "/i18n",
    "/workflow_templates",
    "/global_subgraphs",
    "/internal/folder_paths",
)


@router.get(PATH, dependencies=[Depends(READ)])
async def index(request: Request) -> Response:
    """Serve the page. Its links are relative, so a path without a final slash is redirected."""
    if not request.scope.get("raw_path", b"/").partition(b"?")[0].endswith(b"/"):
        return RedirectResponse(f".{PATH}/", 308)
    content, policy = await asyncio.to_thread(page)
    headers = {**_headers(policy), "Cache-Control": "no-cache"}
    return Response(content, headers=headers, media_type="text/html")


async def from_root() -> Response:
    return RedirectResponse(f".{PATH}/", 307)


@router.get(PATH + "/{path:path}")
async def file(path: str) -> Response:
    """Serve a file of the public package. Only the page itself needs a key."""
    # The page links this file, and would log an error if the file were missing.
    if path == "user.css":
        return Response(media_type="text/css")
    found = await asyncio.to_thread(_file, path)
    if found is None:
        raise not_found("There is nothing at this path.")
    age = _MOST_AGE if path.startswith(_ASSETS) else "no-cache"
    headers = {"Cache-Control": age, **_headers(_policy())}
    media_type = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    return FileResponse(found, headers=headers, media_type=media_type)


@cache
def static_folder() -> Path | None:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return (Path(spec.submodule_search_locations[0]) / "static").resolve()


@cache
def page() -> tuple[bytes, str]:
    """Return the page and its Content-Security-Policy."""
    folder = static_folder()
    if folder is None:
        return _MISSING, "default-src 'none'"
    content = (folder / "index.html").read_bytes()
    digests = [hashlib.sha256(each).digest() for each in _SCRIPT.findall(content)]
    return content, _policy(*(base64.b64encode(each).decode() for each in digests))


def _file(path: str) -> Path | None:
    """Return the file at this path below the package's folder; None if there is no such file."""
    folder = static_folder()
    if folder is None or "\0" in path:
        return None
    try:
        found = (folder / path).resolve()
        return found if found.is_relative_to(folder) and found.is_file() else None
    except OSError:  # An OSError means that the path is too long.
        return None


def _policy(*scripts: str) -> str:
    """Return the strictest Content-Security-Policy with which the page works.

    The policy allows no other hosts, so the page cannot contact account or statistics services.
    """
    hashes = "".join(f" 'sha256-{each}'" for each in scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'wasm-unsafe-eval'{hashes}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' blob: data:",
            "media-src 'self' blob: data:",
            "font-src 'self' data:",
            "connect-src 'self' blob: data:",
            "worker-src 'self' blob:",
            "manifest-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _headers(policy: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }


state_router = APIRouter(include_in_schema=False, dependencies=[Depends(READ)])


async def _nothing() -> dict[str, Any]:
    return {}


for _path in _EMPTY_OBJECTS:
    state_router.add_api_route(twin(_path), _nothing)


@state_router.get(twin("/internal/logs"))
async def logs() -> str:
    """Return an empty text, because the log of the service is for its operator."""
    return ""


@state_router.get(twin("/internal/logs/raw"))
async def raw_logs() -> dict[str, Any]:
    return {"entries": [], "size": {"cols": 0, "rows": 0}}


@state_router.patch(twin("/internal/logs/subscribe"))
async def subscribe_logs() -> Response:
    return Response()


@state_router.get(twin("/users"))
async def users() -> dict[str, Any]:
    """Return one user, which represents the owner of the key."""
    return {"storage": "server", "migrated": True}


@state_router.get(twin("/extensions"))
async def extensions() -> list[str]:
    """Return an empty list, because extensions of Darkroom contain only nodes, no scripts."""
    return []
