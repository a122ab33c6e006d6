"""Data of API keys that a delivery needs: signing secrets and allowed callback hosts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from events.errors import ServiceError
from events.log import utc_now
from events.store.keys import ApiKeys
from events.store.records import KeyLimits
from settings.constant import constant
from storage.service_secret import webhook_secret

logger = logging.getLogger(__name__)

V = TypeVar("V")

_MOST_SECRETS = constant("CALLBACK_SECRETS", 3)
"""Largest number of signatures of a delivery. The key of the job signs first, then the newest other
keys of the owner.
"""
_TTL_S = 5.0
_MOST_REMEMBERED = 10_000
_PATIENCE_S = 1.0
"""Longest wait of a delivery for the database, in seconds."""


class Remembered(Generic[V]):
    """Caches the results of queries for 5 s, and for longer while the database is not available."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[V]],
        *,
        unknown: V,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` may raise ServiceError. Before the first result, the value is `unknown`."""
        self._ask_for = ask
        self._unknown = unknown
        self._clock = clock
        self._values: dict[str, tuple[float, V]] = {}
        """By name, the time until which the value is used without a query, and the value."""
        self._asking: dict[str, asyncio.Task[V]] = {}
        """By name, the running query, for which all deliveries that need its value wait."""

    async def get(self, name: str) -> V:
        until, known = self._values.get(name, (0.0, self._unknown))
        if self._clock() < until:
            return known
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.create_task(self._ask(name, known))
        await asyncio.wait([asking], timeout=_PATIENCE_S)
        return asking.result() if asking.done() else known

    async def _ask(self, name: str, known: V) -> V:
        value = known
        try:
            value = await self._ask_for(name)
        except ServiceError:
            pass
        # Any error is only logged, and the known value is used. An error here must not end a
        # delivery.
        except Exception:
            logger.exception("not known", extra={"action": "remember"})
        finally:
            del self._asking[name]
        self._values.pop(name, None)
        # Only one value is removed. While the database is unavailable, a removed value cannot be
        # read again.
        if len(self._values) >= _MOST_REMEMBERED:
            del self._values[next(iter(self._values))]
        self._values[name] = (self._clock() + _TTL_S, value)
        return value


class SigningSecrets:
    """Derives up to `most` signing secrets for a delivery.

    The ids of keys are cached for 5 s, and for longer while the database is not available. The
    secret of a key is derived from its id, so a delivery can be signed without the database. The
    secrets of keys whose ids are not cached are then left out.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        secret: bytes,
        most: int = _MOST_SECRETS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`secret` is the service's secret. The secret of each key is derived from it."""
        self._keys = keys
        self._secret = secret
        self._most = most
        self._live = Remembered[list[str]](self._ask, unknown=[], clock=clock)

    async def of(self, owner: str, key_id: str) -> list[str]:
        """The secret of `key_id`, then the secrets of the owner's newest other keys.

        `key_id` need not be live.
        """
        others = [id for id in await self._live.get(owner) if id != key_id]
        ids = [key_id, *others][: self._most]
        return [webhook_secret(self._secret, id) for id in ids]

    async def _ask(self, owner: str) -> list[str]:
        return await self._keys.live_ids(owner, now=utc_now(), most=self._most)


class AllowedHosts:
    """Checks a host against the current list of a key.

    If a host is removed from the list, open deliveries to this host are refused, too. If a key is
    revoked or expires, its deliveries continue, because a revocation refuses only new requests. If
    the database has not answered yet, the delivery is made, because the host was allowed when the
    job was accepted.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        default: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`default` is the list for keys that have no list."""
        self._keys = keys
        self._default = KeyLimits(callback_hosts=tuple(default))
        self._limits = Remembered(self._ask, unknown=KeyLimits(), clock=clock)

    async def allow(self, key_id: str, host: str) -> bool:
        """Whether the key may use `host`, which has the form of `callback_address.Target.host`."""
        return (await self._limits.get(key_id)).allow_callback_host(host)

    async def _ask(self, key_id: str) -> KeyLimits:
        key = await self._keys.get(key_id)
        return KeyLimits() if key is None else key.limits.over(self._default)
