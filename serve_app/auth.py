"""Who is calling, and may they: Bearer keys and their scopes (RFC 6750)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from events.log import utc_now
from events.store.records import ApiKey, KeyLimits, Scope
from serve_app.access.api_keys import parse
from serve_app.access.rates import Rates
from serve_app.access.ttl_cache import TtlCache
from serve_app.errors import ApiError

if TYPE_CHECKING:
    from events.store.keys import ApiKeys


class Authenticator:
    """Finds the row of a key, and remembers it for `ttl_s`: that long a revocation takes."""

    def __init__(
        self,
        keys: ApiKeys,
        *,
        ttl_s: float,
        defaults: KeyLimits = KeyLimits(),  # noqa: B008 - frozen
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = keys
        self._defaults = defaults
        self._keys = TtlCache(self._load, ttl_s=ttl_s, clock=clock)
        self._now = now

    async def _load(self, key_id: str) -> ApiKey | None:
        key = await self._rows.get(key_id)
        return key and replace(key, limits=key.limits.over(self._defaults))

    def forget(self, key_id: str) -> None:
        """Look the key up again: it was changed here."""
        self._keys.drop(key_id)

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


async def caller(request: Request) -> ApiKey:
    """The caller's key as it is now, to be asked again behind a long wait. Raises ApiError 401."""
    authenticator: Authenticator = request.app.state.authenticator
    return await authenticator.authenticate(request.headers.get("authorization", ""))


class Requires(SecurityBase):
    """A dependency that answers the caller's key, or 401, 403 or 429. `admin` includes every scope.

    It is FastAPI's base for what is described in the OpenAPI document, and nothing else of it:
    its own `HTTPBearer` would be run beside this, on every request.
    """

    model = HTTPBearer(bearerFormat="dk_...")
    scheme_name = "bearer"

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> ApiKey:
        key = await caller(request)
        rates: Rates = request.app.state.rates
        rates.take(key)
        if key.scopes.isdisjoint((self._scope, Scope.ADMIN)):
            raise _forbidden(f"The API key lacks the scope {self._scope}.", scope=self._scope)
        return key


Generator = Annotated[ApiKey, Depends(Requires(Scope.GENERATE))]
Reader = Annotated[ApiKey, Depends(Requires(Scope.READ))]
Canceller = Annotated[ApiKey, Depends(Requires(Scope.CANCEL))]
Admin = Annotated[ApiKey, Depends(Requires(Scope.ADMIN))]


def require_endpoint(key: ApiKey, id: str) -> None:
    """Raises ApiError 403."""
    if not key.limits.allow_endpoint(id):
        raise _forbidden("The API key may not use this endpoint.", parameter="endpoint")


def require_callback_host(key: ApiKey, host: str) -> None:
    """Raises ApiError 403."""
    if not key.limits.allow_callback_host(host):
        raise _forbidden("The API key may not call this host back.", parameter="callback_url")


def _forbidden(message: str, **extra_info: str) -> ApiError:
    return ApiError(403, "forbidden", message, extra_info=extra_info)


def _unauthorized(message: str, error: str | None) -> ApiError:
    challenge = f'Bearer error="{error}"' if error else "Bearer"
    return ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": challenge})
