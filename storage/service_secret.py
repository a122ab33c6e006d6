"""Values derived from the service's secret: sealed texts, tokens of image URLs, webhook secrets.

Sealed texts, for example presigned upload URLs, are parts of events, but only this service can read
them. Fernet encrypts and signs them (https://github.com/fernet/spec/blob/master/Spec.md). The token
in an image's URL gives access to the image without an API key, and cannot be guessed. A webhook
secret signs the callbacks of an API key (Standard Webhooks, symmetric).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import time
from collections.abc import Callable
from typing import Protocol

from cryptography.fernet import Fernet, InvalidToken


class SealBroken(ValueError):
    """The text was sealed with another `DARKROOM_SECRET`, or is damaged."""


def sealed(secret: bytes, text: str) -> str:
    return _sealing_key(secret).encrypt(text.encode()).decode()


def unsealed(secret: bytes, text: str) -> str:
    """Decrypt a sealed text. Raises SealBroken."""
    try:
        return _sealing_key(secret).decrypt(text.encode()).decode()
    except InvalidToken as error:
        raise SealBroken("the text was sealed with another DARKROOM_SECRET") from error


def _sealing_key(secret: bytes) -> Fernet:
    digest = hmac.new(secret, b"sealed texts", hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


class StoredFileName(Protocol):
    """The property of a stored file that its URL needs."""

    @property
    def name(self) -> str: ...


def file_token(secret: bytes, job_id: str, name: str, *, expires: int | None = None) -> str:
    """Return the HMAC-SHA256 of job id, file name and expiry, URL-safe and deterministic.

    `expires` is the Unix time at which the token becomes invalid; None means never.
    """
    end = "" if expires is None else f"?expires={expires}"
    digest = hmac.new(secret, f"file:{job_id}/{name}{end}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_file_token(
    token: str, *, secret: bytes, job_id: str, name: str, expires: int | None = None
) -> bool:
    """Return whether `token` is the token of the file, by a comparison in constant time."""
    expected = file_token(secret, job_id, name, expires=expires)
    return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected.encode())


def url_for(
    public_url: str,
    secret: bytes,
    *,
    ttl_s: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Callable[[str, StoredFileName], str]:
    """Return a function that makes the URL of a file (`events.result.UrlFor`):
    `{public_url}/files/{job_id}/{name}?token=...`.

    If `ttl_s` is not 0, each URL is valid for about `ttl_s` seconds, and contains its expiry
    (`&expires=`).
    """

    def url(job_id: str, file: StoredFileName) -> str:
        name = file.name
        expires = math.ceil(clock() + ttl_s) if ttl_s else None
        token = file_token(secret, job_id, name, expires=expires)
        end = "" if expires is None else f"&expires={expires}"
        return f"{public_url}/files/{job_id}/{name}?token={token}{end}"

    return url


_WEBHOOK_PREFIX = "whsec_"


def webhook_secret(service_secret: bytes, key_id: str) -> str:
    """Derive the webhook secret of an API key: 32 bytes. The specification allows 24 to 64 bytes.

    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
    """
    digest = hmac.new(service_secret, f"webhook:{key_id}".encode(), hashlib.sha256).digest()
    return _WEBHOOK_PREFIX + base64.b64encode(digest).decode()
