"""Serves the console and its files, which are loaded before the first request.

The page is at `/console`, and also at `/` unless another page is at `/`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response

from serve_app.answers import ConstantPage

PATH = "/console"
ROOT = "/"
_PAGE = "index.html"
_MEDIA_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' blob: data:",
    "media-src": "'self'",
    "connect-src": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    # A browser that supports this directive raises an error if text is used as HTML.
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def install(app: FastAPI, *, at_root: bool) -> None:
    for name, content in _contents(files("serve_app.console") / "static"):
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        if name != _PAGE:
            _serve(app, f"{PATH}/{name}", content, media_type)
            continue
        _serve(app, PATH, content, media_type)
        app.add_api_route(f"{PATH}/", _redirect, include_in_schema=False)
        if at_root:
            _serve(app, ROOT, content, media_type)


async def _redirect() -> Response:
    """Redirect to the path without a final slash, because the page's links are relative to it."""
    return Response(status_code=307, headers={"Location": f"..{PATH}"})


def _contents(folder: Traversable, prefix: str = "") -> Iterable[tuple[str, bytes]]:
    """Yield the path and the content of each file below the folder."""
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _contents(each, f"{prefix}{each.name}/")
        else:
            yield prefix + each.name, each.read_bytes()


def _serve(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    page = ConstantPage(content, media_type, _HEADERS)

    async def serve(request: Request) -> Response:
        return page.answer(request)

    app.add_api_route(path, serve, include_in_schema=False)
