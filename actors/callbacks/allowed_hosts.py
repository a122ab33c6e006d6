"""Which hosts the key of a job may have called back, at the time of the delivery."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from actors.callbacks.remembered import Remembered
from events.store.keys import ApiKeys
from events.store.records import KeyLimits


class AllowedHosts:
    """The list of a key as it is now, so that one that was made shorter stops what is on its way.

    That a key is revoked or has expired stops nothing: it ends what the key may ask for, not the
    answers to what it asked. Where the database has not answered yet, a delivery goes out, for its
    host was allowed when the job was accepted.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        default: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`default` is the list of keys that have none of their own."""
        self._keys = keys
        self._default = KeyLimits(callback_hosts=tuple(default))
        self._limits = Remembered(self._ask, unknown=KeyLimits(), clock=clock)

    async def allow(self, key_id: str, host: str) -> bool:
        """`host` as `callback_address.Target` has it."""
        return (await self._limits.get(key_id)).allow_callback_host(host)

    async def _ask(self, key_id: str) -> KeyLimits:
        key = await self._keys.get(key_id)
        return KeyLimits() if key is None else key.limits.over(self._default)
