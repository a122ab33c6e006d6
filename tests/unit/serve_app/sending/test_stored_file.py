"""A file as its readers take it: one part of it in memory, however slow they are."""

import asyncio
import hashlib
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from serve_app.stored_file import PART_BYTES, FileRequestDep, StoredFile, file_answer
from storage.images import ImageNotFound, ImageStore
from tests.support.constants import constants
from tests.support.edge import Client
from tests.support.live.stream import DEADLINE_S, Stream, watching

DATA = bytes(range(256)) * (PART_BYTES // 256 * 3) + b"end"
FILE = StoredFile("folder/0.png", hashlib.sha256(DATA).hexdigest(), len(DATA), "image/png")


class WatchedStore(ImageStore):
    """Notes what is read; what `missing` names is not there any more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.as_uri())
        self.read: list[range | None] = []
        self.missing_after: int | None = None

    async def get(self, key: str, part: range | None = None) -> bytes:
        if self.missing_after is not None and len(self.read) >= self.missing_after:
            raise ImageNotFound(key)
        self.read.append(part)
        return await super().get(key, part)


@pytest.fixture
async def store(tmp_path: Path) -> WatchedStore:
    store = WatchedStore(tmp_path)
    await store.put(FILE.key, DATA)
    return store


def serving(store: ImageStore, file: StoredFile = FILE) -> FastAPI:
    app = FastAPI()

    @app.get("/file")
    async def _(file_request: FileRequestDep) -> object:
        return await file_answer(file, file_request, store, cache_control="private")

    return app


def client(app: FastAPI) -> Client:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://darkroom.test")


@pytest.mark.parametrize(
    ("headers", "status", "content", "sizes"),
    [
        ({}, 200, DATA, [PART_BYTES] * 3 + [3]),
        ({"Range": f"bytes=5-{5 + PART_BYTES}"}, 206, DATA[5 : 6 + PART_BYTES], [PART_BYTES, 1]),
    ],
    ids=["whole", "range"],
)
async def test_a_large_file_is_read_in_parts(
    store: WatchedStore, headers: dict[str, str], status: int, content: bytes, sizes: list[int]
) -> None:
    async with client(serving(store)) as http:
        answer = await http.get("/file", headers=headers)
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers["Content-Length"] == str(len(content))
    assert [len(part or ()) for part in store.read] == sizes


async def test_an_empty_file_has_an_empty_body(store: WatchedStore) -> None:
    empty = StoredFile("folder/1.txt", hashlib.sha256(b"").hexdigest(), 0, "text/plain")
    await store.put(empty.key, b"")
    async with client(serving(store, empty)) as http:
        answer = await http.get("/file")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Length"] == "0"


async def test_who_takes_nothing_holds_one_part_and_is_cut_off(store: WatchedStore) -> None:
    with constants(silence_timeout_s=0.05):
        async with watching(serving(store), "/file", "key") as reader:
            await take_one_part(reader)
            await reader.end()
    assert (reader.status, reader.is_whole) == (200, False)
    assert len(store.read) == 2


async def test_who_takes_slowly_gets_all(store: WatchedStore) -> None:
    async with watching(serving(store), "/file", "key") as reader:
        for _ in range(4):
            await take_one_part(reader)
            await asyncio.sleep(0.01)
        reader.takes.set()
        await reader.end()
    assert reader.is_whole
    assert reader.body == DATA


async def test_a_file_that_goes_meanwhile_has_no_proper_end(
    store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.missing_after = 1
    async with watching(serving(store), "/file", "key") as reader:
        await reader.end()
    assert (reader.is_whole, reader.body) == (False, DATA[:PART_BYTES])
    assert "cut off" in caplog.text


async def take_one_part(reader: Stream) -> None:
    """Let it come on, and take nothing from then on."""
    reader.began.clear()
    reader.takes.set()
    async with asyncio.timeout(DEADLINE_S):
        await reader.began.wait()
    reader.takes.clear()
