"""Finds the API key of a caller (RFC 6750), and checks the permissions of the key."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from events.log import utc_now
from events.store.records import ApiKey, Endpoint, KeyLimits, Scope
from serve_app.access.api_keys import parse
from serve_app.access.ttl_cache import TtlCache
from serve_app.refusals import (
    CallbackHostForbidden,
    EndpointForbidden,
    KeyInvalid,
    KeyMissing,
    ScopeMissing,
)
from settings.constant import constant

if TYPE_CHECKING:
    from events.store.keys import ApiKeys


def require_scope(key: ApiKey, scope: Scope) -> None:
    """Raise ScopeMissing if the key does not have the scope. `admin` includes all scopes."""
    if key.scopes.isdisjoint((scope, Scope.ADMIN)):
        raise ScopeMissing(scope)


def require_endpoint(key: ApiKey, id: str) -> None:
    """Raise EndpointForbidden if the key may not use the endpoint."""
    if not key.limits.allow_endpoint(id):
        raise EndpointForbidden


def may_see(key: ApiKey, endpoint: Endpoint) -> bool:
    return endpoint.owner in {None, key.owner} or Scope.ADMIN in key.scopes


def require_callback_host(key: ApiKey, host: str) -> None:
    """Raise CallbackHostForbidden if the key may not send callbacks to the host."""
    if not key.limits.allow_callback_host(host):
        raise CallbackHostForbidden


_CACHE_S = constant("KEY_CACHE_S", 5.0)
"""Seconds for which a replica caches a key. A revoked key may still work for this time."""


class Authenticator:
    """Finds and caches the database rows of keys.

    A change of a key by another replica takes effect after at most `ttl_s` seconds.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        ttl_s: float | None = None,
        defaults: KeyLimits = KeyLimits(),  # noqa: B008 - frozen
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`defaults` has the values of the limits that a key does not set."""
        self._rows = keys
        self._defaults = defaults
        self._keys = TtlCache(self._load, ttl_s=_CACHE_S if ttl_s is None else ttl_s, clock=clock)
        self._now = now

    async def _load(self, key_id: str) -> ApiKey | None:
        key = await self._rows.get(key_id)
        return key and replace(key, limits=key.limits.over(self._defaults))

    def forget(self, key_id: str) -> None:
        """Remove a key from the cache, after this replica has changed the key."""
        self._keys.drop(key_id)

    async def authenticate(self, authorization: str) -> ApiKey:
        """Return the key in an `Authorization` header. Raises KeyMissing, KeyInvalid."""
        scheme, _, text = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            raise KeyMissing
        parsed = parse(text.strip())
        if parsed is None:
            raise KeyInvalid("The text is not an API key. Check it for typing errors.")
        key = await self._keys.get(parsed.id)
        if key is None or not parsed.opens(key):
            raise KeyInvalid("There is no such API key.")
        if not key.is_live(self._now()):
            raise KeyInvalid("The API key was revoked or has expired.")
        return key
