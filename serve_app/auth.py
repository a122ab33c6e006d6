"""Who is calling, and may they: Bearer keys and their scopes (RFC 6750)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from events.log import utc_now
from events.records import ApiKey, Scope
from serve_app.api_keys import parse
from serve_app.errors import ApiError
from serve_app.ttl_cache import TtlCache

if TYPE_CHECKING:
    from events.registry import ApiKeys

_TTL_S = 5.0


class Authenticator:
    """Finds the row of a key; remembers it for 5 s, so that a revocation holds within 10 s."""

    def __init__(
        self,
        keys: ApiKeys,
        *,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = TtlCache(keys.get, ttl_s=_TTL_S, clock=clock)
        self._now = now

    async def authenticate(self, authorization: str) -> ApiKey:
        """The key of an `Authorization` header's value. Raises ApiError 401."""
        scheme, _, text = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("Send an API key as Authorization: Bearer <API_KEY>.", None)
        parsed = parse(text.strip())
        if parsed is None:
            raise _unauthorized("The API key is misspelt.", "invalid_token")
        key = await self._keys.get(parsed.id)
        if key is None or not parsed.opens(key):
            raise _unauthorized("The API key is not known.", "invalid_token")
        if not key.is_live(self._now()):
            raise _unauthorized("The API key was revoked or has expired.", "invalid_token")
        return key


class Requires(SecurityBase):
    """A dependency that answers the caller's key, or 401 or 403. `admin` includes every scope.

    It is FastAPI's base for what is described in the OpenAPI document, and nothing else of it:
    its own `HTTPBearer` would be run beside this, on every request.
    """

    model = HTTPBearer(bearerFormat="dk_...")
    scheme_name = "bearer"

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> ApiKey:
        authenticator: Authenticator = request.app.state.authenticator
        key = await authenticator.authenticate(request.headers.get("authorization", ""))
        if key.scopes.isdisjoint((self._scope, Scope.ADMIN)):
            message = f"The API key lacks the scope {self._scope}."
            raise ApiError(403, "forbidden", message, extra_info={"scope": self._scope})
        return key


Generator = Annotated[ApiKey, Depends(Requires(Scope.GENERATE))]
Reader = Annotated[ApiKey, Depends(Requires(Scope.READ))]
Canceller = Annotated[ApiKey, Depends(Requires(Scope.CANCEL))]


def _unauthorized(message: str, error: str | None) -> ApiError:
    challenge = f'Bearer error="{error}"' if error else "Bearer"
    return ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": challenge})
