"""The HTTP API of one replica: its routes, error handlers, middleware and OpenAPI document."""

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

from serve_app import error_responses, refused_keys
from serve_app.auth import (
    API_KEY_HEADER,
    POLICY,
    REMAINING,
    RateLimits,
    not_stored,
    without_key,
)
from serve_app.console import pages as console
from serve_app.error_responses import ApiError
from serve_app.middleware import HEADER, RequestIds, UnreadBodies
from serve_app.openapi import pages
from serve_app.openapi.document import finish, operation_id
from serve_app.protocols.comfyui import page as comfyui
from serve_app.protocols.notes import NOTES_HEADER
from serve_app.protocols.registry import HttpProtocol, error_forms, protocols_of
from serve_app.protocols.waiting import JOB_ID_HEADER
from serve_app.replica import Replica
from serve_app.routes import (
    admin_jobs,
    callbacks,
    catalogue,
    endpoints,
    events,
    files,
    generate,
    health,
    jobs,
    keys,
    uploads,
    usage,
    workflows,
)
from settings.http import HttpSettings, ProtocolSettings, RootPage
from settings.version import VERSION
from storage.file_names import SAFETENSORS

logger = logging.getLogger(__name__)

_DIRECT_ROUTERS = (generate.router, jobs.results_router)
_ROUTERS = (
    jobs.router,
    events.router,
    # This router precedes `admin_jobs.router`, which would match `blocked` as a job id.
    admin_jobs.blocked_router,
    admin_jobs.router,
    callbacks.router,
    uploads.router,
    usage.router,
    keys.router,
    endpoints.router,
    workflows.router,
    catalogue.router,
    files.router,
    health.router,
    health.metrics_router,
)
_PAGES = (pages.PATH, console.PATH)
TITLE = "Darkroom"
_COMPRESSED_FROM_BYTES = 1000
_COMPRESSED_IN_THREAD_FROM_BYTES = 32 * 1024
"""A smaller answer is compressed in less than a millisecond."""
_COMPRESSION = 5
"""The compression level of zlib, 1 to 9."""
_SENT_BY_PAGES = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Range",
    API_KEY_HEADER,
)
_READ_BY_PAGES = (
    "Content-Range",
    JOB_ID_HEADER,
    NOTES_HEADER,
    "ETag",
    "Location",
    "Retry-After",
    "Server-Timing",
)
"""Response headers that scripts of other origins may read (CORS)."""
_DESCRIPTION = """\
Asynchronous image generation. Submit a job, get its `request_id` at once, and get a callback or
read the result when it has ended.
"""


def create_api(
    replica: Replica,
    *,
    http: HttpSettings,
    protocol_settings: ProtocolSettings,
    background: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    is_in_serve: bool = False,
) -> FastAPI:
    """Build the API of one replica. The context of `background` lasts from startup to shutdown."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with background():
            try:
                yield
            finally:
                await replica.stop()

    app = _Api(
        are_requests_logged=http.log_requests,
        is_in_serve=is_in_serve,
        title=TITLE,
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_id,
        openapi_url=None,
    )
    app.state.replica = replica
    _add_middleware(app, cors_origins=http.cors_origins)
    protocols = protocols_of(protocol_settings)
    _add_error_handlers(app, replica, protocols)
    _add_routes(app)
    _add_pages(app, http, root_page=protocol_settings.root_page)
    # These routes are last, so that Darkroom's own routes take precedence.
    for router in _routers_of(protocols):
        app.include_router(router)
    return app


def _add_routes(app: FastAPI) -> None:
    """Add Darkroom's own routes. FastAPI tries them in this order, so frequent routes are first."""
    app.router.routes[:0] = [each for direct in _DIRECT_ROUTERS for each in direct.routes]
    for router in _ROUTERS:
        app.include_router(router)


def _routers_of(protocols: Sequence[HttpProtocol]) -> list[APIRouter]:
    return [router for each in protocols for router in each.routers]


def _add_pages(app: FastAPI, settings: HttpSettings, *, root_page: RootPage) -> None:
    if settings.docs:
        pages.install(app)
    if settings.console:
        console.install(app, at_root=root_page == "console")
    if root_page == "comfyui":
        app.add_api_route("/", comfyui.from_root, include_in_schema=False)


def _add_error_handlers(app: FastAPI, replica: Replica, protocols: Sequence[HttpProtocol]) -> None:
    form_of = error_forms(protocols)
    routers = [*_DIRECT_ROUTERS, *_ROUTERS, *_routers_of(protocols)]

    async def wrong_method(request: Request, _error: Exception) -> Response:
        error = _wrong_method(request.scope["path"], routers)
        replica.metrics.note_refusal(error.type)
        return form_of(request)(error)

    error_responses.install(app, note=replica.metrics.note_refusal, form_of=form_of)
    app.add_exception_handler(405, wrong_method)
    refused_keys.install(app, replica.callers.refusal_log)


def _add_middleware(app: FastAPI, *, cors_origins: Sequence[str]) -> None:
    """Add the middleware. The middleware that is added last receives a request first."""
    app.add_middleware(RateLimits)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_COMPRESSED_FROM_BYTES,
        compresslevel=_COMPRESSION,
        thread_minimum_size=_COMPRESSED_IN_THREAD_FROM_BYTES,
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
    """Return whether a slash at the end of the path must be removed.

    Pages redirect to the path without the slash instead, so that their relative links work.
    """
    return path.endswith("/") and bool(path.strip("/")) and path[:-1] not in _PAGES


def _wrong_method(path: str, routers: Sequence[APIRouter]) -> ApiError:
    """Build the error 405, which lists the methods of all routes at this path."""
    allowed = {
        method
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.path_regex.match(path)
        for method in route.methods or ()
    }
    headers = {"Allow": ", ".join(sorted(allowed) or ["GET"])}
    return ApiError(405, *error_responses.ROUTING[405], headers=headers)


class _Api(FastAPI):
    def __init__(self, *, are_requests_logged: bool, is_in_serve: bool, **options: Any) -> None:
        super().__init__(**options)
        # This middleware is outside FastAPI's error handlers, so that all errors have an id.
        with_id = RequestIds(
            self._answer, are_requests_logged=are_requests_logged, is_in_serve=is_in_serve
        )
        self._outermost = UnreadBodies(with_id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. A key in the path and a slash at its end are removed."""
        if scope["type"] != "lifespan":
            if (bare := without_key(scope)) is not scope:
                scope, send = bare, not_stored(send)
            if _has_slash(path := scope["path"]):
                scope = {**scope, "path": path[:-1]}
        await self._outermost(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. An unexpected error is logged after the answer with status 500.

        The error is not raised again, because Serve would log it in another format.
        """
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            if scope["type"] != "http":
                raise
            fields = {"action": "request", "method": scope["method"], "path": scope["path"]}
            logger.exception("request failed", extra=fields)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = finish(super().openapi())
        return self.openapi_schema
