"""Reads the bodies of requests: so many bytes in memory at a time, from senders who keep pace."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from serve_app.access.turns import Turns
from serve_app.body import Pace, bounded, expected_bytes, joined, parse_json, require_json
from serve_app.checks import QUICK_BYTES, Checks
from settings.http import HttpSettings

M = TypeVar("M", bound=BaseModel)

_SMALL_BYTES = 16 * 1024
"""Bodies of announced length up to this wait for no turn: connections bound their number."""


class Bodies:
    """The bodies that one replica reads. Each waits for its turn before it is read."""

    def __init__(self, settings: HttpSettings, checks: Checks) -> None:
        self.max_bytes = settings.max_body_bytes
        """Of a body, or of what it has beside images."""
        self._max_image_bytes = max(settings.max_body_bytes, settings.max_image_body_bytes)
        self._pace = Pace(settings.body_grace_s, settings.min_body_bytes_per_s)
        held = settings.max_held_body_bytes
        self._turns = Turns(held, per_owner=max(1, held // 2), timeout_s=settings.body_wait_s)
        self._checks = checks

    @asynccontextmanager
    async def chunks(
        self, request: Request, owner: str, *, max_bytes: int
    ) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """The body in chunks as it arrives; its turn lasts as long as the context.

        Raises NoTurn, ApiError: 413 as soon as it is too large, 408 as soon as it is too slow.
        """
        size_bytes = expected_bytes(request, max_bytes=max_bytes)
        stream = bounded(request, max_bytes=max_bytes, pace=self._pace)
        if size_bytes <= _SMALL_BYTES:
            yield stream
            return
        async with self._turns.take(owner, size_bytes):
            yield stream

    @asynccontextmanager
    async def room(self, owner: str, size_bytes: int) -> AsyncGenerator[None]:
        """A turn for what is held to answer a request, as bodies have theirs. Raises NoTurn."""
        async with self._turns.take(owner, size_bytes):
            yield

    @asynccontextmanager
    async def json(
        self,
        request: Request,
        owner: str,
        *,
        max_bytes: int | None = None,
        of_any_type: bool = False,
    ) -> AsyncGenerator[tuple[bytes, Any]]:
        """The body, and the same parsed; its turn lasts as long as the context.

        `max_bytes`: of a route whose bodies may be larger than others, if they bring images.
        Raises ApiError: 415 for another media type, 400 `invalid_json`, and as `chunks` does.
        """
        if not of_any_type:
            require_json(request)
        async with self.chunks(request, owner, max_bytes=max_bytes or self.max_bytes) as chunks:
            body = await joined(chunks)
            is_quick = len(body) <= QUICK_BYTES
            yield body, await self._checks.run(owner, parse_json, body, is_quick=is_quick)

    def json_with_images(
        self, request: Request, owner: str
    ) -> AbstractAsyncContextManager[tuple[bytes, Any]]:
        """`json` of a body that may bring images along; without these it may still be too large."""
        return self.json(request, owner, max_bytes=self._max_image_bytes)

    async def model(self, request: Request, owner: str, model: type[M]) -> M:
        """The body as `model`. FastAPI would read it without a bound, and before it asks for a key.

        Raises ApiError as `json` does, RequestValidationError.
        """
        async with self.json(request, owner) as (body, content):
            is_quick = len(body) <= QUICK_BYTES
            return await self._checks.run(owner, validated, model, content, is_quick=is_quick)


def validated(model: type[M], content: Any) -> M:
    """Raises RequestValidationError."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from error
