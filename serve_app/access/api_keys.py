"""The text of an API key: `dk_<id>_<secret>_<checksum>`.

The prefix allows secret scanners to find leaked keys. The id identifies the key's database row. The
checksum detects typing errors without a query. Only a hash of the secret is stored. The secret is
random and long, so a plain SHA-256 is as secure as a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from events.store.records import ApiKey, KeyLimits, Scope
from serve_app.refusals import KeyNotFound, KeyNotRotatable
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
