"""The OpenAPI document, and the page for trying the API. All files are served by Darkroom."""

from __future__ import annotations

import asyncio
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from pydantic_core import to_json
from starlette.routing import Route

from serve_app.answers import JSON, ConstantPage

DOCUMENT = "/openapi.json"

PATH = "/docs"
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_START = """\
SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true});
"""
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Darkroom</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_HEADERS = {
    # Swagger UI needs inline styles. Only scripts of this origin run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def install(app: FastAPI) -> None:
    """Add the document, the page, and the files of the page from the package `fastapi-offline`."""
    _serve_document(app)
    folder = files("fastapi_offline") / "static"
    _serve(app, PATH, _PAGE.encode(), "text/html")
    app.add_api_route(f"{PATH}/", _redirect, include_in_schema=False)
    _serve(app, f"{PATH}/start.js", _START.encode(), "text/javascript")
    for name, media_type in _ASSETS.items():
        _serve(app, f"{PATH}/{name}", (folder / name).read_bytes(), media_type)


async def _redirect() -> Response:
    """Redirect to the path without a final slash, because the page's links are relative to it."""
    return Response(status_code=307, headers={"Location": f"..{PATH}"})


def _serve_document(app: FastAPI) -> None:
    """Add the document, which is built at the first request, because this takes about a second."""
    page: ConstantPage | None = None
    building = asyncio.Lock()

    async def serve(request: Request) -> Response:
        nonlocal page
        async with building:
            if page is None:
                page = await asyncio.to_thread(lambda: ConstantPage(to_json(app.openapi()), JSON))
        return page.answer(request)

    # A plain route costs less than one of FastAPI, and this page needs no key.
    app.router.routes.append(Route(DOCUMENT, serve, include_in_schema=False))


def _serve(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    page = ConstantPage(content, media_type, _HEADERS)

    async def serve(request: Request) -> Response:
        return page.answer(request)

    app.add_api_route(path, serve, include_in_schema=False)
