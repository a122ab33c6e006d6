"""The token in an image's URL: whoever has the URL may fetch the image, and nobody can guess it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Protocol

from storage.keys import file_name


class Named(Protocol):
    """What a URL needs of a stored file."""

    @property
    def index(self) -> int: ...

    @property
    def media_type(self) -> str | None: ...


def file_token(secret: bytes, job_id: str, name: str) -> str:
    """HMAC-SHA256 of job and file name, URL-safe; always the same, so the URL is too."""
    digest = hmac.new(secret, f"file:{job_id}/{name}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_file_token(token: str, *, secret: bytes, job_id: str, name: str) -> bool:
    """Whether `token` is the file's, compared in constant time."""
    expected = file_token(secret, job_id, name)
    return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected.encode())


def url_for(public_url: str, secret: bytes) -> Callable[[str, Named], str]:
    """The `UrlFor` of `events.result`: `{public_url}/files/{request_id}/{name}?token=...`."""

    def url(job_id: str, file: Named) -> str:
        name = file_name(file.index, file.media_type)
        return f"{public_url}/files/{job_id}/{name}?token={file_token(secret, job_id, name)}"

    return url
