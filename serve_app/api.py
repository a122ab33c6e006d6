"""The HTTP API of one replica: its routes, its errors, its OpenAPI document."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from serve_app import errors, refused_keys
from serve_app.openapi import pages
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
from serve_app.unread_bodies import UnreadBodies
from settings.version import VERSION

logger = logging.getLogger(__name__)

_DIRECT_ROUTES = (generate, results)
_ROUTES = (
    jobs,
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
TITLE = "Darkroom"
_DESCRIPTION = """\
Asynchronous image generation. Submit a job, get its `request_id` at once, and be called back or
ask for the result when it has ended.
"""


def create_api(
    replica: Replica, *, background: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
) -> FastAPI:
    """The API of one replica. `background` runs from before the first request to after the last."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with background():
            try:
                yield
            finally:
                await replica.stop()

    has_docs = replica.services.http_settings.docs
    app = _Api(
        title=TITLE,
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if has_docs else None,
    )
    if has_docs:
        pages.install(app)
    app.state.replica = replica
    app.add_middleware(UnreadBodies)
    errors.install(app, note=replica.metrics.note_refusal)
    refused_keys.install(app, replica.refusal_log)
    for direct in _DIRECT_ROUTES:
        app.router.routes += direct.router.routes
    for module in _ROUTES:
        app.include_router(module.router)
    return app


class _Api(FastAPI):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An error that was answered by a 500 is logged here: Serve would write it as it is."""
        try:
            await super().__call__(scope, receive, send)
        except Exception:
            if scope["type"] != "http":
                raise
            fields = {"action": "request", "method": scope["method"], "path": scope["path"]}
            logger.exception("request failed", extra=fields)

    def openapi(self) -> dict[str, Any]:
        """Drops the 422 that FastAPI documents on every route: here it is a 400 in our shape."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document = super().openapi()
        _remove_422(document["paths"])
        for unused in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(unused, None)
        return document


def _remove_422(paths: dict[str, Any]) -> None:
    for path in paths.values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for callback in operation.get("callbacks", {}).values():
                _remove_422(callback)
