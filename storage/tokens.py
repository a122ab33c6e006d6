"""The token in an image's URL: whoever has the URL may fetch the image, and nobody can guess it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import time
from collections.abc import Callable
from typing import Protocol

from storage.keys import file_name


class Named(Protocol):
    """What a URL needs of a stored file."""

    @property
    def index(self) -> int: ...

    @property
    def media_type(self) -> str | None: ...


def file_token(secret: bytes, job_id: str, name: str, *, expires: int | None = None) -> str:
    """HMAC-SHA256 of job, file name and end, URL-safe; always the same for the same.

    `expires`: Unix time from which on it opens nothing; None: it has no end.
    """
    end = "" if expires is None else f"?expires={expires}"
    digest = hmac.new(secret, f"file:{job_id}/{name}{end}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_file_token(
    token: str, *, secret: bytes, job_id: str, name: str, expires: int | None = None
) -> bool:
    """Whether `token` is the file's with this end, compared in constant time."""
    expected = file_token(secret, job_id, name, expires=expires)
    return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected.encode())


def url_for(
    public_url: str,
    secret: bytes,
    *,
    ttl_s: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Callable[[str, Named], str]:
    """The `UrlFor` of `events.result`: `{public_url}/files/{request_id}/{name}?token=...`.

    With `ttl_s` each URL that is made works for so long, and says until when (`&expires=`).
    """

    def url(job_id: str, file: Named) -> str:
        name = file_name(file.index, file.media_type)
        expires = math.ceil(clock() + ttl_s) if ttl_s else None
        token = file_token(secret, job_id, name, expires=expires)
        end = "" if expires is None else f"&expires={expires}"
        return f"{public_url}/files/{job_id}/{name}?token={token}{end}"

    return url
