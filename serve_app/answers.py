"""Builds large answers in threads, because they would block the event loop."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic_core import to_json

from serve_app.fair_threads import FairSemaphore, ended
from settings.constant import constant

_LISTS = constant("LISTS", 2)
"""The number of large answers that a replica builds at a time. One owner may use one of them."""
_LEVEL = 6
JSON = "application/json"
T = TypeVar("T")


def list_turns() -> FairSemaphore:
    """Return the semaphore that a request acquires before it reads and builds a large answer."""
    return FairSemaphore(_LISTS, per_owner=1)


async def in_thread(build: Callable[[], T]) -> T:
    """Call `build` in a thread. A cancelled caller waits for its end; see `fair_threads.ended`."""
    return await ended(asyncio.create_task(asyncio.to_thread(build)))


async def json_answer(build: Callable[[], Any], *, exclude_none: bool = False) -> Response:
    """Call `build` and encode its result as JSON, both in a thread."""
    content = await in_thread(lambda: to_json(build(), exclude_none=exclude_none))
    return Response(content, media_type=JSON)


class PageCache:
    """Keeps the pages that were used last. Each page is built from the values in its key."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._pages: dict[Hashable, ConstantPage] = {}

    async def get(self, key: Hashable, build: Callable[[], Any]) -> ConstantPage:
        """Return the page of `key`. If it is not known, `build` is called in a thread."""
        page = self._pages.pop(key, None)
        if page is None:
            headers = {"Cache-Control": "private, no-cache"}
            page = await in_thread(lambda: ConstantPage(to_json(build()), JSON, headers))
        self._pages[key] = page
        if len(self._pages) > self._most:
            del self._pages[next(iter(self._pages))]
        return page


class ConstantPage:
    """A page that is compressed once. A client that sends its ETag back gets 304."""

    def __init__(
        self, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._plain = content
        self._compressed = gzip.compress(content, _LEVEL, mtime=0)
        self._media_type = media_type
        # The ETag is weak, because the answer may be compressed.
        self._etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        # `no-cache` lets a client keep the page, and makes it check the page at each use.
        self._headers = {"Cache-Control": "no-cache", **(headers or {}), "ETag": self._etag}

    def answer(self, request: Request) -> Response:
        """Return the page, or a 304 if the request has its ETag in `If-None-Match`."""
        known = request.headers.get("if-none-match", "")
        if self._etag in {each.strip() for each in known.split(",")}:
            return Response(status_code=304, headers=self._headers)
        headers, content = self._headers, self._plain
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            content = self._compressed
        return Response(content, headers=headers, media_type=self._media_type)
