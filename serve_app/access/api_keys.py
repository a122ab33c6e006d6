"""API keys: their texts, the Authenticator that finds their rows (RFC 6750), and their permissions.

The text of a key is `dk_<id>_<secret>_<checksum>`. The prefix allows secret scanners to find leaked
keys. The id identifies the key's database row. The checksum detects typing errors without a query.
Only a hash of the secret is stored. The secret is random and long, so a plain SHA-256 is as secure
as a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from events.log import utc_now
from events.store.records import ApiKey, Endpoint, KeyLimits, Scope
from serve_app.access.ttl_cache import TtlCache
from serve_app.refusals import (
    CallbackHostForbidden,
    EndpointForbidden,
    KeyInvalid,
    KeyMissing,
    KeyNotFound,
    KeyNotRotatable,
    ScopeMissing,
)
from settings.constant import constant

if TYPE_CHECKING:
    from events.store.keys import ApiKeys

PREFIX = "dk"
_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 12
_SECRET_LENGTH = 27  # This number of characters can encode 160 bits.
_CHECKSUM_LENGTH = 6  # This number of characters can encode 32 bits.
KEY_ID = rf"^[a-z0-9]{{{_ID_LENGTH}}}$"
_TEXT = re.compile(
    rf"(?P<body>{PREFIX}_(?P<id>[a-z0-9]{{{_ID_LENGTH}}})_(?P<secret>[0-9A-Za-z]{{{_SECRET_LENGTH}}}))"
    rf"_(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)

GRACE_S = constant("KEY_ROTATION_GRACE_S", 7 * 86400.0)
"""Seconds for which the old key works after a rotation, if the request states no time."""
_CACHE_S = constant("KEY_CACHE_S", 5.0)
"""Seconds for which a replica caches a key. A revoked key may still work for this time."""


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key, which possibly does not exist."""

    id: str
    secret_sha256: str

    def opens(self, key: ApiKey) -> bool:
        """Return, in constant time, whether `key` is the database row of this key."""
        return hmac.compare_digest(self.secret_sha256, key.secret_sha256) and self.id == key.id


def mint(
    owner: str,
    name: str,
    scopes: Iterable[Scope],
    *,
    created_at: datetime,
    expires_at: datetime | None = None,
    limits: KeyLimits = KeyLimits(),  # noqa: B008 - frozen
) -> tuple[str, ApiKey]:
    """Create a key. Returns its text, which is shown only once, and its database row."""
    id = "".join(secrets.choice(string.digits + string.ascii_lowercase) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
    body = f"{PREFIX}_{id}_{secret}"
    key = ApiKey(
        id=id,
        owner=owner,
        name=name,
        secret_sha256=_sha256(secret),
        scopes=frozenset(scopes),
        created_at=created_at,
        expires_at=expires_at,
        limits=limits,
    )
    return f"{body}_{_checksum(body)}", key


def mint_successor(old: ApiKey, *, created_at: datetime) -> tuple[str, ApiKey]:
    """Create a key like `old`. The new lifetime has the same length and begins at `created_at`."""
    return mint(
        old.owner,
        old.name,
        old.scopes,
        created_at=created_at,
        expires_at=old.expires_at and created_at + (old.expires_at - old.created_at),
        limits=old.limits,
    )


def parse(text: str) -> ParsedKey | None:
    """Parse the text of a key. Returns None if it is malformed or its checksum is wrong."""
    parts = _TEXT.fullmatch(text)
    if parts is None or parts["checksum"] != _checksum(parts["body"]):
        return None
    return ParsedKey(parts["id"], _sha256(parts["secret"]))


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _checksum(body: str) -> str:
    """Return the CRC-32 in base 62."""
    number, digits = zlib.crc32(body.encode()), ""
    while len(digits) < _CHECKSUM_LENGTH:
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


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


async def rotate(
    keys: ApiKeys, key_id: str, *, grace: timedelta, now: datetime
) -> tuple[str, ApiKey]:
    """Create the successor of a key. Returns its text, which is shown only once, and its row.

    Raises KeyNotFound, and KeyNotRotatable if the key was revoked, has expired or was rotated.
    """
    old = await keys.get(key_id)
    if old is None:
        raise KeyNotFound
    if old.replaced_by is not None:
        raise KeyNotRotatable(
            f"The key was already rotated. The new key has the id {old.replaced_by}."
        )
    if not old.is_live(now):
        raise KeyNotRotatable("The key was revoked or has expired. Create a new one.")
    text, new = mint_successor(old, created_at=now)
    if not await keys.rotate(old, new, old_ends_at=now + grace):
        raise KeyNotRotatable("The key was changed by another request at the same time. Try again.")
    return text, new
