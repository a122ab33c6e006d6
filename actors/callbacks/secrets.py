"""The secrets that sign a delivery: the submitting key's, and those of its owner's other keys.

While keys are rotated, a receiver knows the old secret or the new one; it accepts a delivery that
is signed with either (Standard Webhooks, `webhook-signature`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.keys import ApiKeys
from events.webhook_secret import webhook_secret

_TTL_S = 5.0
_MOST_REMEMBERED = 10_000
_PATIENCE_S = 1.0
"""A delivery waits no longer than this for a database that hangs."""


class SigningSecrets:
    """Derives up to `most` secrets per delivery.

    The ids of keys are kept for 5 s, and for longer while the database is not available.
    Secrets are derived, so it can sign without a database; unknown other keys are left out.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        secret: bytes,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`secret` is the service's, from which each key's own is derived."""
        self._keys = keys
        self._secret = secret
        self._most = most
        self._clock = clock
        self._live: dict[str, tuple[float, list[str]]] = {}
        """By owner: the clock's time until which the ids count as known, and the ids."""
        self._asking: dict[str, asyncio.Task[list[str]]] = {}
        """By owner: one query, for all deliveries that find the ids too old."""

    async def of(self, owner: str, key_id: str) -> list[str]:
        """The secret of `key_id`, live or not, and those of the owner's newest others."""
        others = [id for id in await self._live_ids(owner) if id != key_id]
        ids = [key_id, *others][: self._most]
        return [webhook_secret(self._secret, id) for id in ids]

    async def _live_ids(self, owner: str) -> list[str]:
        until, known = self._live.get(owner, (0.0, []))
        if self._clock() < until:
            return known
        asking = self._asking.get(owner)
        if asking is None:
            asking = self._asking[owner] = asyncio.create_task(self._ask(owner, known))
        await asyncio.wait([asking], timeout=_PATIENCE_S)
        return asking.result() if asking.done() else known

    async def _ask(self, owner: str, known: list[str]) -> list[str]:
        ids = known
        try:
            with suppress(DatabaseUnavailable):
                ids = await self._keys.live_ids(owner, now=utc_now(), most=self._most)
        finally:
            del self._asking[owner]
        if len(self._live) >= _MOST_REMEMBERED:
            self._live.clear()
        self._live[owner] = (self._clock() + _TTL_S, ids)
        return ids
