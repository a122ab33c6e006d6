"""Finds the API key of a caller (RFC 6750)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from events.log import utc_now
from events.store.records import ApiKey, KeyLimits
from serve_app.access.api_keys import parse
from serve_app.access.ttl_cache import TtlCache
from serve_app.refusals import KeyInvalid, KeyMissing

if TYPE_CHECKING:
    from events.store.keys import ApiKeys


class Authenticator:
    """Finds the row of a key, and remembers it for `ttl_s`.

    So a change that another replica made holds here after `ttl_s`.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        ttl_s: float,
        defaults: KeyLimits = KeyLimits(),  # noqa: B008 - frozen
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`defaults`: the limits of a key that has none of its own."""
        self._rows = keys
        self._defaults = defaults
        self._keys = TtlCache(self._load, ttl_s=ttl_s, clock=clock)
        self._now = now

    async def _load(self, key_id: str) -> ApiKey | None:
        key = await self._rows.get(key_id)
        return key and replace(key, limits=key.limits.over(self._defaults))

    def forget(self, key_id: str) -> None:
        """Read the row again at the next request: it was changed here."""
        self._keys.drop(key_id)

    async def authenticate(self, authorization: str) -> ApiKey:
        """The key of an `Authorization` header's value. Raises KeyMissing, KeyInvalid."""
        scheme, _, text = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            raise KeyMissing
        parsed = parse(text.strip())
        if parsed is None:
            raise KeyInvalid("The API key is misspelt.")
        key = await self._keys.get(parsed.id)
        if key is None or not parsed.opens(key):
            raise KeyInvalid("The API key is not known.")
        if not key.is_live(self._now()):
            raise KeyInvalid("The API key was revoked or has expired.")
        return key
