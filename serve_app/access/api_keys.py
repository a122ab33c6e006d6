"""The text of an API key: `dk_<id>_<secret>_<checksum>`.

The prefix lets a secret scanner find a leaked key, and the id finds its row. The checksum shows a
typo without a query. Of the secret only a hash is stored. The secret is random and long, so a plain
SHA-256 is as good as a slow hash.
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
from datetime import datetime

from events.store.records import ApiKey, KeyLimits, Scope

PREFIX = "dk"
_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 12
_SECRET_LENGTH = 27  # 160 bits
_CHECKSUM_LENGTH = 6  # 32 bits
KEY_ID = rf"^[a-z0-9]{{{_ID_LENGTH}}}$"
_TEXT = re.compile(
    rf"(?P<body>{PREFIX}_(?P<id>[a-z0-9]{{{_ID_LENGTH}}})_(?P<secret>[0-9A-Za-z]{{{_SECRET_LENGTH}}}))"
    rf"_(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key, which may not exist."""

    id: str
    secret_sha256: str

    def opens(self, key: ApiKey) -> bool:
        """Whether this is the key of the row, compared in constant time."""
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
    """A new key: its text, to be shown once, and its row."""
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
    """A new key like `old`, with the same lifetime, counted from `created_at`."""
    return mint(
        old.owner,
        old.name,
        old.scopes,
        created_at=created_at,
        expires_at=old.expires_at and created_at + (old.expires_at - old.created_at),
        limits=old.limits,
    )


def parse(text: str) -> ParsedKey | None:
    """None for a text of another form, and for a typo that the checksum shows."""
    parts = _TEXT.fullmatch(text)
    if parts is None or parts["checksum"] != _checksum(parts["body"]):
        return None
    return ParsedKey(parts["id"], _sha256(parts["secret"]))


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _checksum(body: str) -> str:
    """CRC-32 in base 62."""
    number, digits = zlib.crc32(body.encode()), ""
    while len(digits) < _CHECKSUM_LENGTH:
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
