"""Texts that this service alone can read, such as addresses that open a caller's bucket.

They are kept in events, which subscribers and backups have. Fernet encrypts and signs them
(https://github.com/fernet/spec/blob/master/Spec.md).
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from cryptography.fernet import Fernet, InvalidToken


class SealBroken(ValueError):
    """It was sealed under another `DARKROOM_SECRET`, or is damaged."""


def sealed(secret: bytes, text: str) -> str:
    return _key(secret).encrypt(text.encode()).decode()


def unsealed(secret: bytes, text: str) -> str:
    """Raises SealBroken."""
    try:
        return _key(secret).decrypt(text.encode()).decode()
    except InvalidToken as error:
        raise SealBroken from error


def _key(secret: bytes) -> Fernet:
    """Derived from the service's own, as those for other purposes are."""
    digest = hmac.new(secret, b"sealed texts", hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
