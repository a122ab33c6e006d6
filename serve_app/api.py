"""The HTTP API of one replica: its routes, its errors, its OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import Receive, Scope, Send

from serve_app import errors, refused_keys
from serve_app.adapters.adapter import Adapter, error_forms
from serve_app.adapters.all import adapters_of
from serve_app.adapters.comfyui import page as comfyui
from serve_app.adapters.credentials import without_key
from serve_app.api_error import ApiError
from serve_app.console import pages as console
from serve_app.live import routes as live
from serve_app.middleware.rate_limits import POLICY, REMAINING, RateLimits
from serve_app.middleware.request_ids import HEADER, RequestIds
from serve_app.middleware.unread_bodies import UnreadBodies
from serve_app.openapi import pages
from serve_app.openapi.document import finish, operation_id
from serve_app.replica import Replica
from serve_app.routes import (
    admin_jobs,
    blocked_jobs,
    callbacks,
    catalogue,
    endpoints,
    files,
    generate,
    health,
    jobs,
    keys,
    metrics,
    results,
    uploads,
    usage,
)
from settings.http import HttpSettings, RootPage
from settings.version import VERSION
from storage.keys import SAFETENSORS

logger = logging.getLogger(__name__)

_DIRECT_ROUTES = (generate, results)
_ROUTES = (
    jobs,
    live,
    blocked_jobs,  # before those of one job, whose id could be read as its name
    admin_jobs,
    callbacks,
    uploads,
    usage,
    keys,
    endpoints,
    catalogue,
    files,
    health,
    metrics,
)
_PAGES = (pages.PATH, console.PATH)
TITLE = "Darkroom"
_COMPRESSED_FROM_BYTES = 1000
_COMPRESSION = 5
"""zlib's level, of 9."""
_SENT_BY_PAGES = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Range",
)
_READ_BY_PAGES = ("Content-Range", "ETag", "Location", "Retry-After", "Server-Timing")
"""Headers for which a browser asks whether pages of another origin may have them."""
_DESCRIPTION = """\
Asynchronous image generation. Submit a job, get its `request_id` at once, and be called back or
ask for the result when it has ended.
"""


def create_api(
    replica: Replica,
    *,
    background: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    is_in_serve: bool = False,
) -> FastAPI:
    """The API of one replica. `background` runs from before the first request to after the last."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with background():
            try:
                yield
            finally:
                await replica.stop()

    settings = replica.services.http_settings
    app = _Api(
        settings,
        is_in_serve=is_in_serve,
        title=TITLE,
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
        openapi_url="/openapi.json" if settings.docs else None,
    )
    app.state.replica = replica
    _add_middleware(app, cors_origins=settings.cors_origins)
    adapters = adapters_of(replica.services.adapter_settings)
    _add_error_handlers(app, replica, adapters)
    _add_routes(app)
    _add_pages(app, settings, root_page=replica.services.adapter_settings.root_page)
    for router in _routers_of(adapters):
        app.include_router(router)
    return app


def _add_routes(app: FastAPI) -> None:
    """Routes are tried in their order, so those that are called most come first."""
    app.router.routes[:0] = [each for direct in _DIRECT_ROUTES for each in direct.router.routes]
    for module in _ROUTES:
        app.include_router(module.router)


def _routers_of(adapters: Sequence[Adapter]) -> list[APIRouter]:
    """They come last: where two take a path, ours has it."""
    return [router for each in adapters for router in each.routers]


def _add_pages(app: FastAPI, settings: HttpSettings, *, root_page: RootPage) -> None:
    if settings.docs:
        pages.install(app)
    if settings.console:
        console.install(app, at_root=root_page == "console")
    if root_page == "comfyui":
        app.add_api_route("/", comfyui.from_root, include_in_schema=False)


def _add_error_handlers(app: FastAPI, replica: Replica, adapters: Sequence[Adapter]) -> None:
    form_of = error_forms(adapters)
    ours = [module.router for module in (*_DIRECT_ROUTES, *_ROUTES)]
    routers = ours + _routers_of(adapters)

    async def wrong_method(request: Request, _error: Exception) -> Response:
        told = _wrong_method(request.scope["path"], routers)
        replica.metrics.note_refusal(told.type)
        return form_of(request)(told)

    errors.install(app, note=replica.metrics.note_refusal, form_of=form_of)
    app.add_exception_handler(405, wrong_method)
    refused_keys.install(app, replica.refusal_log)


def _add_middleware(app: FastAPI, *, cors_origins: Sequence[str]) -> None:
    """The last one sees a request first."""
    app.add_middleware(RateLimits)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_COMPRESSED_FROM_BYTES,
        compresslevel=_COMPRESSION,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, SAFETENSORS),
    )
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=[*_SENT_BY_PAGES, HEADER],
            expose_headers=[*_READ_BY_PAGES, POLICY, REMAINING, HEADER],
        )


def _has_slash(path: str) -> bool:
    """Pages have relative links, so each is at one path."""
    return path.endswith("/") and bool(path.strip("/")) and path[:-1] not in _PAGES


def _wrong_method(path: str, routers: Sequence[APIRouter]) -> ApiError:
    """Names the methods of every route of this path; the router knows those of one of them."""
    allowed = {
        method
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.path_regex.match(path)
        for method in route.methods or ()
    }
    headers = {"Allow": ", ".join(sorted(allowed) or ["GET"])}
    return ApiError(405, *errors.ROUTING[405], headers=headers)


class _Api(FastAPI):
    def __init__(self, settings: HttpSettings, *, is_in_serve: bool, **options: Any) -> None:
        super().__init__(**options)
        # Around everything, for an answer of 500 has an id, too.
        with_id = RequestIds(
            self._answer, are_requests_logged=settings.log_requests, is_in_serve=is_in_serve
        )
        self._outermost = UnreadBodies(with_id, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A path with a slash behind it is the one without."""
        if scope["type"] == "http" and _has_slash(path := scope["path"]):
            scope = {**scope, "path": path[:-1]}
        await self._outermost(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An error that was answered by a 500 is logged here: Serve would write it as it is."""
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            if scope["type"] != "http":
                raise
            path = without_key(scope["path"])
            fields = {"action": "request", "method": scope["method"], "path": path}
            logger.exception("request failed", extra=fields)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = finish(super().openapi())
        return self.openapi_schema
