import asyncio
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage.images import ImageNotFound, ImageStore, ImageStoreUnavailable


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ImageStore:
    folder = tmp_path / "made when missing" / "images"
    return ImageStore(folder.as_uri() if request.param == "folder" else "memory://")


async def test_what_was_put_is_read_back(store: ImageStore) -> None:
    for data in (b"first", b"pixels"):
        await store.put("job/1/0.png", data)
        assert await store.get("job/1/0.png") == data
    assert await store.get("job/1/0.png", range(1, 3)) == b"ix"
    for _ in range(2):
        await store.delete("job/1/0.png")
        with pytest.raises(ImageNotFound, match=r"job/1/0\.png"):
            await store.get("job/1/0.png")


async def test_a_folder_is_emptied_of_what_was_there_by_a_time(tmp_path: Path) -> None:
    store, noon = ImageStore(tmp_path.as_uri()), datetime(2026, 3, 1, 12, tzinfo=UTC)
    for name, age_s in (("older", 1), ("same", 0), ("younger", -1)):
        await store.put(f"job/1/{name}.png", b"pixels")
        stored_at_s = noon.timestamp() - age_s
        os.utime(tmp_path / f"job/1/{name}.png", (stored_at_s, stored_at_s))
    await store.delete_folder("job", stored_by=noon)
    [files] = [files async for files in store.files("job")]
    assert [file.key for file in files] == ["job/1/younger.png"]
    await store.delete_folder("job")
    assert [files async for files in store.files("job")] == []


async def test_two_stores_on_one_folder_see_the_same(tmp_path: Path) -> None:
    await ImageStore(tmp_path.as_uri()).put("a/0.png", b"pixels")
    assert await ImageStore(tmp_path.as_uri()).get("a/0.png") == b"pixels"
    assert (tmp_path / "a" / "0.png").read_bytes() == b"pixels"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["0.png"]


async def test_a_store_that_refuses_is_told_apart_from_a_missing_image(tmp_path: Path) -> None:
    store = ImageStore(tmp_path.as_uri())
    (tmp_path / "job").write_bytes(b"a file where a folder should be")
    with pytest.raises(ImageStoreUnavailable, match="could not store the image job/1"):
        await store.put("job/1/0.png", b"pixels")


async def test_a_store_that_hangs_is_given_up_and_holds_up_no_other_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, may_end = ImageStore("memory://", retry_s=0.2), threading.Event()
    monkeypatch.setattr(store, "_get", lambda *_: may_end.wait())
    calls = [asyncio.create_task(store.get("a.png")) for _ in range(16)]
    await asyncio.sleep(0)
    try:
        with pytest.raises(ImageStoreUnavailable, match="16 calls already wait"):
            await store.size("a.png")
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 5) == "free"
    finally:
        for call in calls:
            call.cancel()
        may_end.set()
    await store.put("b.png", b"pixels")


async def test_a_thread_that_cannot_start_takes_no_turn_from_later_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ImageStore("memory://", retry_s=0.2)

    def cannot_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        for _ in range(16):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await store.put("a.png", b"pixels")
    await store.put("a.png", b"pixels")
    assert await store.get("a.png") == b"pixels"
