"""Stores images and other files by key, in a local folder or an object store.

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

from settings.constant import constant

if TYPE_CHECKING:
    # These names exist only in the stubs, and not at run time.
    from obstore import GetOptions, ListStream, ObjectMeta

T = TypeVar("T")

_RETRY_S = constant("IMAGES_RETRY_S", 10.0)
"""The time in seconds for which a failed call is repeated. A request without an answer ends after
30 s, or after the time in `AWS_TIMEOUT`, `GOOGLE_TIMEOUT` or `AZURE_TIMEOUT` (for example `10s`).
"""
_THREADS = 16
"""The largest number of calls to a store at the same time."""


class ImageStoreError(Exception):
    """The image store could not execute the call."""


class ImageNotFound(ImageStoreError):
    """Nothing is stored under this key."""


class ImageStoreUnavailable(ImageStoreError):
    """The image store refused or did not answer. Try again."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    key: str
    stored_at: datetime


class ImageStore:
    """Stores images in `url`: `file:///folder`, `s3://bucket/prefix`, `gs://...`, `az://...`, or
    `memory://` for tests.

    Threads call obstore, because its own asyncio functions return on a thread that may abort the
    process while the interpreter exits (Python 3.11, obstore 0.12: about every second exit). Each
    store has its own threads, so that a store that hangs blocks no other work.
    """

    def __init__(self, url: str, *, retry_s: float = _RETRY_S) -> None:
        """`retry_s` is the time in seconds for which a failed call is repeated.

        A call also waits up to `retry_s` seconds for a free thread.
        """
        self._store, self._folder = _open(url, retry_s)
        self._retry_s = retry_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="image-store")
        self._free = asyncio.Semaphore(_THREADS)

    async def put(self, key: str, data: bytes) -> None:
        """Store all of `data` or nothing. After the return the data is durable.

        Raises ImageStoreUnavailable.
        """
        await self._in_thread(self._put, key, data)

    async def get(self, key: str, part: range | None = None) -> bytes:
        """Return the image, or a part of it. Raises ImageNotFound, ImageStoreUnavailable."""
        return await self._in_thread(self._get, key, part)

    async def size(self, key: str) -> int:
        """Return the size of the image in bytes. Raises ImageNotFound, ImageStoreUnavailable."""
        return await self._in_thread(self._size, key)

    async def delete(self, key: str) -> None:
        """Remove the image if it exists. Raises ImageStoreUnavailable."""
        await self._in_thread(self._delete, key)

    async def delete_folder(
        self, folder: str, *, stored_by: datetime | None = None, but: str | None = None
    ) -> None:
        """Remove every file below `folder` except the file with the key `but`.

        With `stored_by`, remove only files that were stored at this time or before. Raises
        ImageStoreUnavailable.
        """
        async for files in self.files(folder):
            for file in files:
                if (stored_by is None or file.stored_at <= stored_by) and file.key != but:
                    await self.delete(file.key)

    async def files(
        self, folder: str | None = None, *, batch: int = 500
    ) -> AsyncGenerator[list[StoredFile]]:
        """Yield all files below `folder`, about `batch` at a time. Raises ImageStoreUnavailable."""
        found = obstore.list(self._store, folder, chunk_size=batch)
        while files := await self._in_thread(self._next, found):
            yield files

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        try:
            async with asyncio.timeout(self._retry_s):
                await self._free.acquire()
        except TimeoutError:
            text = f"{_THREADS} calls already wait for the image store"
            raise ImageStoreUnavailable(text) from None
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args))
        except RuntimeError:  # A thread cannot start.
            self._free.release()
            raise
        # A running thread cannot be stopped. The thread stays busy until the call ends, even if the
        # caller was cancelled.
        done.add_done_callback(self._end)
        return await asyncio.shield(done)

    def _end(self, done: asyncio.Future[T]) -> None:
        self._free.release()
        if not done.cancelled():
            # asyncio logs an error that is never retrieved, for example after a cancelled call.
            done.exception()

    def _next(self, found: ListStream[Sequence[ObjectMeta]]) -> list[StoredFile]:
        try:
            return [StoredFile(each["path"], each["last_modified"]) for each in next(found, ())]
        except FileNotFoundError:
            return []  # The folder does not exist, or was removed during the read.
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("list", "files", error)) from error

    def _put(self, key: str, data: bytes) -> None:
        try:
            # The data is sent in one request, because an interrupted multipart upload would leave
            # parts in the bucket.
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
            raise ImageNotFound(f"there is no image with the key {key}") from error
        except (BaseError, OSError) as error:
            raise ImageStoreUnavailable(_reason("read", key, error)) from error

    def _size(self, key: str) -> int:
        try:
            return obstore.head(self._store, key)["size"]
        except FileNotFoundError as error:
            raise ImageNotFound(f"there is no image with the key {key}") from error
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
    """Open the store. Return the store, and its folder if the store is local."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        return LocalStore(folder, mkdir=True, automatic_cleanup=True), folder
    if parts.scheme == "memory":
        return from_url("memory:///"), None
    # Time-outs are not set here, because client options in the code replace all client options from
    # the environment (AWS_TIMEOUT, AWS_ALLOW_HTTP, AWS_PROXY_URL).
    return from_url(url, retry_config={"retry_timeout": timedelta(seconds=retry_s)}), None


def _sync(path: Path, root: Path) -> None:
    """Sync a new file and its folders to the disk, because the store does not."""
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
