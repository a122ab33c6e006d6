"""Fetcher: downloads an image from a URL that a caller sent.

The address rule of callbacks applies. For the URL and for each redirect, the name is resolved once,
and connections are made only to checked addresses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from functools import partial
from urllib.parse import urljoin

import httpcore

from actors.callbacks.guarded_backend import GuardedBackend, Proxy
from actors.callbacks.sender import FAILURES, own_headers, path_of
from events.callback_address import AddressRule, Resolve
from events.errors import AddressNotAllowed, FetchFailed
from settings.constant import constant

_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp"})
_BYTES = frozenset({"application/octet-stream", "binary/octet-stream"})
"""Content types of files of unknown type. The decoder of the image detects the real type."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONNECT_TIMEOUT_S = constant("FETCH_CONNECT_TIMEOUT_S", 3.0)
_MAX_REDIRECTS = constant("FETCH_MAX_REDIRECTS", 3)
_SHOWN_CHARS = 80
_LONGEST_LOOKUP_S = 60.0
_MANY_PARTS = 64
"""Number of parts after which other tasks of the event loop may run."""
_SMALLEST_PART = 512
"""Smallest allowed average size of the parts in bytes. Each part costs CPU time."""


class Fetcher:
    def __init__(
        self,
        rule: AddressRule,
        *,
        max_bytes: int,
        resolve: Resolve,
        proxy: Proxy | None = None,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout_s: float = _CONNECT_TIMEOUT_S,
        max_redirects: int = _MAX_REDIRECTS,
    ) -> None:
        self._rule = rule
        self._connect_timeout_s = connect_timeout_s
        self._max_redirects = max_redirects
        self._max_bytes = max_bytes
        self._resolve = resolve
        self._proxy = proxy
        self._ssl_context = ssl_context or httpcore.default_ssl_context()

    async def fetch(self, url: str, *, timeout_s: float) -> bytes:
        """Download the image at an https URL within `timeout_s`. Raises FetchFailed.

        The thread of a name look-up cannot be stopped. So a fetch that fails returns only after the
        end of its look-ups, or after a minute. Otherwise the look-ups of a caller with slow name
        servers could occupy more threads than the caller may have fetches.
        """
        lookups = set[asyncio.Task[Sequence[str]]]()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._followed(url, partial(self._look_up, lookups))
        except AddressNotAllowed as error:
            raise FetchFailed(str(error)) from error
        except (TimeoutError, httpcore.TimeoutException) as error:
            raise FetchFailed("its server did not answer in time") from error
        except FAILURES as error:
            raise FetchFailed("the connection to its server failed") from error
        finally:
            if lookups:
                done, _ = await asyncio.wait(lookups, timeout=_LONGEST_LOOKUP_S)
                for lookup in done:
                    lookup.exception()  # asyncio logs an exception that is not read.

    async def _look_up(self, lookups: set[asyncio.Task[Sequence[str]]], host: str) -> Sequence[str]:
        async def resolve() -> Sequence[str]:
            return await self._resolve(host)

        lookup = asyncio.create_task(resolve())
        lookups.add(lookup)
        answers = await asyncio.shield(lookup)
        lookups.discard(lookup)
        return answers

    async def _followed(self, url: str, resolve: Resolve) -> bytes:
        for _ in range(self._max_redirects + 1):
            answer = await self._get(url, resolve)
            if isinstance(answer, bytes):
                return answer
            try:
                url = urljoin(url, answer)
            except ValueError as error:
                raise FetchFailed("a redirect has no valid address") from error
        raise FetchFailed(f"it was redirected more than {self._max_redirects} times")

    async def _get(self, url: str, resolve: Resolve) -> bytes | str:
        """Return the image as bytes, or the URL of a redirect as a str."""
        target = self._rule.check_url(url)
        if target.scheme != "https":
            raise FetchFailed("the scheme must be https")
        backend = GuardedBackend(target, rule=self._rule, resolve=resolve, proxy=self._proxy)
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._ssl_context, max_connections=1, network_backend=backend
        )
        where = httpcore.URL(
            scheme=target.scheme, host=target.host, port=target.port, target=path_of(url)
        )
        extensions = {"timeout": {"connect": self._connect_timeout_s}}
        async with (
            pool,
            pool.stream("GET", where, headers=own_headers(url), extensions=extensions) as answer,
        ):
            headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
            if answer.status in _REDIRECTS and b"location" in headers:
                return headers[b"location"]
            _require_image(answer.status, headers)
            return await self._read(answer, headers.get(b"content-length", ""))

    async def _read(self, answer: httpcore.Response, announced: str) -> bytes:
        parts, size = list[bytes](), 0
        if announced.isdecimal() and len(announced) <= 18:
            self._require_size(int(announced))
        async for part in answer.aiter_stream():
            size += len(part)
            self._require_size(size)
            parts.append(part)
            if len(parts) % _MANY_PARTS == 0:
                if len(parts) > 1000 + size // _SMALLEST_PART:
                    raise FetchFailed("the server sent too many small parts")
                await asyncio.sleep(0)
        return b"".join(parts)

    def _require_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise FetchFailed(f"it has more than {self._max_bytes} bytes")


def _require_image(status: int, headers: dict[bytes, str]) -> None:
    if status != 200:
        raise FetchFailed(f"its server answered {status}")
    if headers.get(b"content-encoding", "identity").lower() != "identity":
        raise FetchFailed("its server answered with a Content-Encoding")
    media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
    if media_type not in _TYPES | _BYTES:
        shown_type = media_type[:_SHOWN_CHARS] or "nothing"
        raise FetchFailed(
            f"the server states the type {shown_type!r}, which is not PNG, JPEG or WebP"
        )
