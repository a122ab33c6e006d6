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
"""Largest number of signatures of a callback: first that of the job's key, then those of the
owner's newest other keys.
"""
_TTL_S = 5.0
_MOST_REMEMBERED = 10_000
_PATIENCE_S = 1.0
"""Longest time in seconds for which a delivery waits for the database."""


class QueryCache(Generic[V]):
    """Caches the results of queries for 5 s, and for longer while the database is not available."""

    def __init__(
        self,
        query: Callable[[str], Awaitable[V]],
        *,
        unknown: V,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`query` may raise ServiceError. Before the first result, the value is `unknown`."""
        self._query = query
        self._unknown = unknown
        self._clock = clock
        self._values: dict[str, tuple[float, V]] = {}
        """By name, the value, after the time until which it is used without a query."""
        self._queries: dict[str, asyncio.Task[V]] = {}
        """The running queries by name. All deliveries that need a value wait for the same query."""

    async def get(self, name: str) -> V:
        until, known = self._values.get(name, (0.0, self._unknown))
        if self._clock() < until:
            return known
        query = self._queries.get(name)
        if query is None:
            query = self._queries[name] = asyncio.create_task(self._refresh(name, known))
        await asyncio.wait([query], timeout=_PATIENCE_S)
        return query.result() if query.done() else known

    async def _refresh(self, name: str, known: V) -> V:
        value = known
        try:
            value = await self._query(name)
        except ServiceError:
            pass
        # No error of a query may end a delivery, so the known value is used.
        except Exception:
            logger.exception("not known", extra={"action": "remember"})
        finally:
            del self._queries[name]
        self._values.pop(name, None)
        # Only one value is removed, because a removed value cannot be read again while the database
        # is unavailable.
        if len(self._values) >= _MOST_REMEMBERED:
            del self._values[next(iter(self._values))]
        self._values[name] = (self._clock() + _TTL_S, value)
        return value


class SigningSecrets:
    """Derives up to `most` signing secrets for a delivery.

    The secret of a key is derived from its id, so a delivery can be signed without the database. If
    the database is unavailable and the ids of the owner's other keys are not cached, only the
    secret of the job's key signs.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        secret: bytes,
        most: int = _MOST_SECRETS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`secret` is the secret of the service, from which the secret of each key is derived."""
        self._keys = keys
        self._secret = secret
        self._most = most
        self._live = QueryCache[list[str]](self._live_ids, unknown=[], clock=clock)

    async def of(self, owner: str, key_id: str) -> list[str]:
        """Return the secret of `key_id`, then the secrets of the owner's newest other live keys."""
        others = [id for id in await self._live.get(owner) if id != key_id]
        ids = [key_id, *others][: self._most]
        return [webhook_secret(self._secret, id) for id in ids]

    async def _live_ids(self, owner: str) -> list[str]:
        return await self._keys.live_ids(owner, now=utc_now(), most=self._most)


class AllowedHosts:
    """Checks a host against the current list of a key.

    So if a host is removed from the list, open deliveries to this host are refused. If a key is
    revoked or expires, its deliveries continue, because a revocation refuses only new requests.
    Before the first answer of the database every host is allowed, because the host was allowed when
    the job was accepted.
    """

    def __init__(
        self,
        keys: ApiKeys,
        *,
        default: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`default` is the list of a key without a list of its own."""
        self._keys = keys
        self._default = KeyLimits(callback_hosts=tuple(default))
        self._limits = QueryCache(self._key_limits, unknown=KeyLimits(), clock=clock)

    async def allow(self, key_id: str, host: str) -> bool:
        """Return whether the key may use `host` (in the form of `callback_address.Target.host`)."""
        return (await self._limits.get(key_id)).allow_callback_host(host)

    async def _key_limits(self, key_id: str) -> KeyLimits:
        key = await self._keys.get(key_id)
        return KeyLimits() if key is None else key.limits.over(self._default)
