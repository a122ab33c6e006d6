"""Image files by key, in a local folder or an object store.

ImageStoreError
├── ImageNotFound           nothing is stored under this key
└── ImageStoreUnavailable   the store refused or did not answer
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

if TYPE_CHECKING:
    from obstore import GetOptions, ListStream, ObjectMeta  # only in the stubs, not at run time

T = TypeVar("T")

_THREADS = 16
"""Calls at once."""


class ImageStoreError(Exception):
    """The image store did not do what was asked."""


class ImageNotFound(ImageStoreError):
    """Nothing is stored under this key."""


class ImageStoreUnavailable(ImageStoreError):
    """The image store refused or did not answer. Try again."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    key: str
    stored_at: datetime


class ImageStore:
    """`url`: `file:///folder`, `s3://bucket/prefix`, `gs://...`, `az://...`; `memory://` for tests.

    obstore is called from threads and not by its own asyncio functions. Those finish on a thread
    of obstore, which may wait for the interpreter while it exits; that aborts the process
    (Python 3.11, obstore 0.12: about every second exit). The threads are its own, so that a store
    that hangs holds up nothing else.
    """

    def __init__(self, url: str, *, retry_s: float = 10.0) -> None:
        """`retry_s`: how long a failed call is made again, and how long it waits for a thread."""
        self._store, self._folder = _open(url, retry_s)
        self._retry_s = retry_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="image-store")
        self._free = asyncio.Semaphore(_THREADS)

    async def put(self, key: str, data: bytes) -> None:
        """Store `data` whole or not at all; durable on return. Raises ImageStoreUnavailable."""
        await self._in_thread(self._put, key, data)

    async def get(self, key: str, part: range | None = None) -> bytes:
        """The image, or a part of it. Raises ImageNotFound, ImageStoreUnavailable."""
        return await self._in_thread(self._get, key, part)

    async def size(self, key: str) -> int:
        """The size of the image in bytes. Raises ImageNotFound, ImageStoreUnavailable."""
        return await self._in_thread(self._size, key)

    async def delete(self, key: str) -> None:
        """Remove the image; nothing happens if there is none. Raises ImageStoreUnavailable."""
        await self._in_thread(self._delete, key)

    async def delete_folder(self, folder: str, *, stored_by: datetime | None = None) -> None:
        """Remove every image below `folder`; with `stored_by`, those that were there by then.

        Raises ImageStoreUnavailable.
        """
        async for files in self.files(folder):
            for file in files:
                if stored_by is None or file.stored_at <= stored_by:
                    await self.delete(file.key)

    async def files(
        self, folder: str | None = None, *, batch: int = 500
    ) -> AsyncGenerator[list[StoredFile]]:
        """Everything below `folder`, about `batch` at a time. Raises ImageStoreUnavailable."""
        found = obstore.list(self._store, folder, chunk_size=batch)
        while files := await self._in_thread(self._next, found):
            yield files

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        try:
            async with asyncio.timeout(self._retry_s):
                await self._free.acquire()
        except TimeoutError:
            text = f"{_THREADS} calls wait for the image store already"
            raise ImageStoreUnavailable(text) from None
        done = asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args))
        # A thread cannot be stopped: it is busy until it ends, whatever became of its caller.
        done.add_done_callback(self._end)
        return await asyncio.shield(done)

    def _end(self, done: asyncio.Future[T]) -> None:
        self._free.release()
        if not done.cancelled():
            done.exception()  # nobody may be left who asks for it

    def _next(self, found: ListStream[Sequence[ObjectMeta]]) -> list[StoredFile]:
        try:
            return [StoredFile(each["path"], each["last_modified"]) for each in next(found, ())]
        except FileNotFoundError:
            return []  # no such folder, or it was removed while it was read
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("list", "files", error)) from error

    def _put(self, key: str, data: bytes) -> None:
        try:
            # In one request: an interrupted multipart upload leaves parts in the bucket.
            obstore.put(self._store, key, data, use_multipart=False)
            if self._folder is not None:
                _sync(self._folder / key, self._folder)
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("store", key, error)) from error

    def _get(self, key: str, part: range | None) -> bytes:
        options: GetOptions = {} if part is None else {"range": (part.start, part.stop)}
        try:
            return obstore.get(self._store, key, options=options).bytes().to_bytes()
        except FileNotFoundError as error:
            raise ImageNotFound(f"no image under {key}") from error
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("read", key, error)) from error

    def _size(self, key: str) -> int:
        try:
            return obstore.head(self._store, key)["size"]
        except FileNotFoundError as error:
            raise ImageNotFound(f"no image under {key}") from error
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("read", key, error)) from error

    def _delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("delete", key, error)) from error


def _open(url: str, retry_s: float) -> tuple[ObjectStore, Path | None]:
    """The store, and its folder if it is a local one."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        return LocalStore(folder, mkdir=True, automatic_cleanup=True), folder
    if parts.scheme == "memory":
        return from_url("memory:///"), None
    # Nothing is said of time-outs here: that would replace all that the environment says of the
    # client (AWS_TIMEOUT, AWS_ALLOW_HTTP, AWS_PROXY_URL).
    return from_url(url, retry_config={"retry_timeout": timedelta(seconds=retry_s)}), None


def _sync(path: Path, root: Path) -> None:
    """Flush a new file and its folders: the store renames it into place, but syncs nothing."""
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == root:
            return


def _reason(verb: str, key: str, error: Exception) -> str:
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    return f"could not {verb} the image {key}: {first_line}"
