"""ComfyUI's own web page at `/comfy/`, where its package is installed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import mimetypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from serve_app.adapters.credentials import READ
from serve_app.api_error import not_found

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
"""Files below it have a digest in their names."""

router = APIRouter(include_in_schema=False)


@router.get(PATH, dependencies=[Depends(READ)])
async def index(request: Request) -> Response:
    """Without the slash at its end its links would lead to the root."""
    if not request.scope.get("raw_path", b"/").partition(b"?")[0].endswith(b"/"):
        return RedirectResponse(f"{PATH}/", 308)
    content, policy = await asyncio.to_thread(page)
    headers = {**_headers(policy), "Cache-Control": "no-cache"}
    return Response(content, headers=headers, media_type="text/html")


async def from_root() -> Response:
    """To the page, from where an operator wants to find it."""
    return RedirectResponse(f".{PATH}/", 307)


@router.get(PATH + "/{path:path}")
async def file(path: str) -> Response:
    """Files of a public package: they need no key, which the page itself does."""
    if path == "user.css":  # the page links it, and logs an error where there is none
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
    """The page, and what it may do."""
    folder = static_folder()
    if folder is None:
        return _MISSING, "default-src 'none'"
    content = (folder / "index.html").read_bytes()
    digests = [hashlib.sha256(each).digest() for each in _SCRIPT.findall(content)]
    return content, _policy(*(base64.b64encode(each).decode() for each in digests))


def _file(path: str) -> Path | None:
    """A file of the package, whatever the path says."""
    folder = static_folder()
    if folder is None or "\0" in path:
        return None
    try:
        found = (folder / path).resolve()
        return found if found.is_relative_to(folder) and found.is_file() else None
    except OSError:  # longer than a path may be
        return None


def _policy(*scripts: str) -> str:
    """As strict as the page takes it. It reaches nobody else: neither accounts nor statistics."""
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
