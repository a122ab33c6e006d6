"""The HTTP API, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import FastAPI

from events.store.records import KeyLimits
from serve_app import errors
from serve_app.acceptance.acceptance import Acceptance
from serve_app.acceptance.withdrawals import Withdrawals
from serve_app.access.open_jobs import OPEN_JOBS_PERIOD_S
from serve_app.access.rates import Rates
from serve_app.access.token_buckets import TokenBuckets
from serve_app.auth import Authenticator
from serve_app.routes import (
    callbacks,
    catalogue,
    files,
    generate,
    health,
    jobs,
    keys,
    results,
    uploads,
)
from serve_app.services import Services
from settings.version import VERSION

TITLE = "Darkroom"
_DESCRIPTION = """\
Asynchronous image generation. Submit a job, get its `request_id` at once, and be called back or
ask for the result when it has ended.
"""


def create_api(
    services: Services,
    *,
    background: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
) -> FastAPI:
    """`background` is entered before the first request and left after the last."""
    withdrawals = Withdrawals(log=services.log, writer=services.writer, queue=services.queue)
    acceptance = Acceptance(services, withdrawals, open_jobs_period_s=open_jobs_period_s)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        async with background():
            try:
                yield
            finally:
                await acceptance.stop()
                await withdrawals.stop()

    app = _Api(
        title=TITLE,
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.authenticator = _authenticator(services)
    app.state.rates = Rates(replicas=services.http_settings.replicas)
    app.state.acceptance = acceptance
    app.state.upload_turn = asyncio.Semaphore(services.http_settings.upload_decodes)
    app.state.callback_tests = TokenBuckets()
    errors.install(app)
    for module in (generate, results, jobs, callbacks, uploads, keys, catalogue, files, health):
        app.include_router(module.router)
    return app


def _authenticator(services: Services) -> Authenticator:
    settings = services.key_settings
    defaults = KeyLimits(
        rate_per_s=settings.rate_per_s,
        burst=settings.burst,
        max_open_jobs=settings.max_open_jobs,
        endpoints=settings.endpoints,
        callback_hosts=settings.callback_hosts,
    )
    return Authenticator(services.keys, ttl_s=settings.cache_s, defaults=defaults)


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Without the 422 that FastAPI writes to every route: here it is a 400 in our shape."""
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
