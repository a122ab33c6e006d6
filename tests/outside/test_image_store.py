"""Images in an S3-compatible server: as it works, fails, is slow, and says nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from storage.images import ImageNotFound, ImageStore, ImageStoreUnavailable
from tests.support.link import Link, linked
from tests.support.outside.object_store import ACCESS, object_store

PICTURE = bytes(range(256)) * 4096
OPTIONS = {"AWS_ALLOW_HTTP": "true", "AWS_TIMEOUT": "2s"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with object_store(tmp_path_factory.mktemp("objects")) as port:
        yield port


@pytest.fixture
async def link(server: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Link]:
    async with linked(server) as link:
        places = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{link.port}", "AWS_REGION": "us-east-1"}
        for name, value in (ACCESS | places | OPTIONS).items():
            monkeypatch.setenv(name, value)
        yield link


@pytest.fixture
def store(link: Link) -> ImageStore:
    return ImageStore(f"s3://darkroom-images/{uuid4()}", retry_s=2)


async def test_what_was_put_is_read_back_whole_and_in_part(store: ImageStore) -> None:
    await store.put("job/1/0.png", PICTURE)
    assert await store.get("job/1/0.png") == PICTURE
    assert await store.get("job/1/0.png", range(10, 1000)) == PICTURE[10:1000]
    assert await store.size("job/1/0.png") == len(PICTURE)


async def test_what_is_not_there_is_missing_and_not_unavailable(store: ImageStore) -> None:
    await store.delete("job/1/0.png")
    for call in (store.get("job/1/0.png"), store.size("job/1/0.png")):
        with pytest.raises(ImageNotFound):
            await call


async def test_a_folder_is_listed_in_several_answers_and_removed(store: ImageStore) -> None:
    """One answer of S3 has 1000 keys at most."""
    keys = [f"job/1/{number}.png" for number in range(1100)]
    for at in range(0, len(keys), 100):
        await asyncio.gather(*(store.put(key, b"") for key in keys[at : at + 100]))
    await store.put("jobs/0.png", b"")
    assert {file.key async for files in store.files("job") for file in files} == set(keys)
    await store.delete_folder("job")
    assert [file.key async for files in store.files() for file in files] == ["jobs/0.png"]


async def test_an_outage_is_told_and_ends_with_its_reason(store: ImageStore, link: Link) -> None:
    await store.put("job/1/0.png", b"pixels")
    link.cut()
    for call in (store.get("job/1/0.png"), store.put("job/1/1.png", b""), store.delete("other")):
        with pytest.raises(ImageStoreUnavailable):
            await call
    with pytest.raises(ImageStoreUnavailable):
        await anext(store.files("job"))
    link.heal()
    assert await store.get("job/1/0.png") == b"pixels"


async def test_a_short_outage_is_not_noticed(store: ImageStore, link: Link) -> None:
    link.cut()
    put = asyncio.create_task(store.put("job/1/0.png", PICTURE))
    await asyncio.sleep(0.3)
    link.heal()
    await put
    assert await store.get("job/1/0.png") == PICTURE


async def test_a_server_that_restarts_within_a_call_gets_it_again(
    store: ImageStore, link: Link
) -> None:
    """Its connections end, so the result of a request is unknown and the request is repeated."""
    link.slow_down(0.5)
    put = asyncio.create_task(store.put("job/1/0.png", PICTURE))
    await asyncio.sleep(0.2)
    link.slow_down(0)
    link.drop()
    await put
    assert await store.get("job/1/0.png") == PICTURE


async def test_slow_answers_are_waited_for(store: ImageStore, link: Link) -> None:
    link.slow_down(0.4)
    await store.put("job/1/0.png", b"pixels")
    assert await store.get("job/1/0.png") == b"pixels"


async def test_silence_ends(store: ImageStore, link: Link) -> None:
    link.fall_silent()
    before = time.monotonic()
    with pytest.raises(ImageStoreUnavailable):
        await store.put("job/1/0.png", b"pixels")
    assert time.monotonic() - before < 10
    link.speak()
    await store.put("job/1/0.png", b"pixels")


async def test_silence_holds_up_nothing_else(store: ImageStore, link: Link) -> None:
    """Not what runs in the threads that all of a process shares, and no line without end."""
    link.fall_silent()
    calls = [asyncio.create_task(store.get(f"job/{number}")) for number in range(40)]
    await asyncio.sleep(0.2)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 1) == "done"
    answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 15)
    assert {type(answer) for answer in answers} == {ImageStoreUnavailable}
    link.speak()
    await store.put("job/1/0.png", b"pixels")


async def test_who_hangs_up_leaves_his_thread_to_nobody(store: ImageStore, link: Link) -> None:
    link.fall_silent()
    calls = [asyncio.create_task(store.get(f"job/{number}")) for number in range(16)]
    await asyncio.sleep(0.2)
    for call in calls:
        call.cancel()
    link.speak()
    await store.put("job/1/0.png", b"pixels")


async def test_a_refused_key_is_no_missing_image(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing image may be forgotten, but an unreadable one must not be."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another key")
    store = ImageStore("s3://darkroom-images/refused", retry_s=1)
    for call in (store.get("a.png"), store.size("a.png"), store.put("a.png", b"")):
        with pytest.raises(ImageStoreUnavailable):
            await call
