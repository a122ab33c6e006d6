"""The secrets that sign a delivery: the submitting key's, and those of its owner's other keys.

While keys are rotated, a receiver knows the old secret or the new one; it accepts a delivery that
is signed with either (Standard Webhooks, `webhook-signature`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from actors.callbacks.remembered import Remembered
from events.log import utc_now
from events.store.keys import ApiKeys
from events.webhook_secret import webhook_secret


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
        self._live = Remembered[list[str]](self._ask, unknown=[], clock=clock)
        """The ids of live keys, by owner."""

    async def of(self, owner: str, key_id: str) -> list[str]:
        """The secret of `key_id`, live or not, and those of the owner's newest others."""
        others = [id for id in await self._live.get(owner) if id != key_id]
        ids = [key_id, *others][: self._most]
        return [webhook_secret(self._secret, id) for id in ids]

    async def _ask(self, owner: str) -> list[str]:
        return await self._keys.live_ids(owner, now=utc_now(), most=self._most)
