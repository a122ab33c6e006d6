"""Uploads: who may send what, and what is kept of it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
from pathlib import Path

import pytest
from PIL import Image

from serve_app.protocols.comfy_v2.assets import hash_of, name_for
from serve_app.refusals import InvalidUploadName
from serve_app.upload_store import UploadStore, content_name
from storage.file_names import copy_name
from tests.support.edge import Client, Edge, refusal
from tests.support.uploads import MKV, MP3, MP4, OGG, WAV, names, png, upload

pytestmark = pytest.mark.edge(max_upload_pixels=10_000)


async def test_an_upload_is_answered_and_kept_as_a_png(edge: Edge, client: Client) -> None:
    out = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(out, "JPEG")
    answer = await upload(client, "cat.jpg", data=out.getvalue(), overwrite="true", type="input")
    assert answer.status_code == 200
    item = answer.json()
    assert (item["name"], item["width"], item["height"]) == ("cat.jpg", 3, 2)
    [kept] = await edge.services.uploads.page("alice", limit=2)
    data = await edge.services.images.get(kept.storage_key)
    assert data.startswith(b"\x89PNG")
    assert item["size_bytes"] == len(data)
    assert item["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\pictures\\cat.png", "cat.png"),
        ("/cat.png", "cat.png"),
        (" cat.png ", "cat.png"),
        ("Katze größer 猫 🐈\u200d⬛.png", "Katze größer 猫 🐈\u200d⬛.png"),
        ("3.04\u202fPM.png", "3.04\u202fPM.png"),
        ("cafe\u0301.png", "café.png"),
        ("a" * 255, "a" * 255),
        ("..\u2215cat.png", "..\u2215cat.png"),
        ("%2e%2e%2fcat.png", "%2e%2e%2fcat.png"),
    ],
)
async def test_a_name_is_a_label_and_no_path(
    edge: Edge, client: Client, tmp_path: Path, sent: str, kept: str
) -> None:
    assert (await upload(client, sent)).json()["name"] == kept
    [stored] = [path for path in (tmp_path / "images").rglob("*") if path.is_file()]
    key = stored.relative_to(tmp_path / "images").as_posix()
    assert set(key) <= set("0123456789abcdef-/.uploadsng")
    [row] = await edge.services.uploads.page("alice", limit=2)
    assert row.storage_key == key


async def test_a_name_that_is_none_is_refused(client: Client) -> None:
    hidden = (
        "cat\u202egnp.exe",
        "cat\x85.png",
        "cat\x7f.png",
        "a\u2028b",
        "cat\u200fb",
        "a\u200bb",
    )
    for name in ("..", "../", " ", "a" * 256, *hidden):
        assert refusal(await upload(client, name)) == (400, "invalid_upload"), name


async def test_a_picture_of_too_many_pixels_is_refused(client: Client) -> None:
    answer = await upload(client, data=png(size=(101, 100)))
    assert refusal(answer) == (400, "invalid_image")
    assert "10000 pixels" in answer.json()["error"]["message"]


async def test_the_same_name_stands_for_the_last_upload(edge: Edge, client: Client) -> None:
    first = (await upload(client)).json()
    assert (await upload(client)).json() == first
    other = (await upload(client, data=png("blue"))).json()
    assert other["digest"] != first["digest"]
    assert await names(client) == ["cat.png"]
    assert (await edge.services.uploads.page("alice", limit=2))[0].digest == other["digest"]


async def test_an_owner_sees_and_removes_only_their_own(
    edge: Edge, client: Client, bob: Client
) -> None:
    await upload(client)
    assert await names(bob) == []
    assert (await bob.delete("/v1/uploads/cat.png")).status_code == 404
    await upload(bob, data=png("blue"))
    assert (await client.delete("/v1/uploads/cat.png")).status_code == 204
    assert (await client.delete("/v1/uploads/cat.png")).status_code == 404
    assert await names(client) == []
    assert len(await edge.services.uploads.page("bob", limit=2)) == 1


async def test_an_upload_is_given_back_as_it_is_kept(client: Client, bob: Client) -> None:
    uploaded = (await upload(client)).json()
    answer = await client.get("/v1/uploads/cat.png")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/png")
    assert f"sha256:{hashlib.sha256(answer.content).hexdigest()}" == uploaded["digest"]
    assert answer.headers["ETag"] == f'"{uploaded["digest"]}"'
    known = {"If-None-Match": answer.headers["ETag"]}
    assert (await client.get("/v1/uploads/cat.png", headers=known)).status_code == 304
    part = await client.get("/v1/uploads/cat.png", headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")
    await upload(client, data=png("blue"))
    assert (await client.get("/v1/uploads/cat.png")).content != answer.content
    for name in ("cat.png", "dog.png", "a%00b", "%ED%A0%80"):
        assert (await bob.get(f"/v1/uploads/{name}")).status_code in {400, 404}
    await client.delete("/v1/uploads/cat.png")
    assert (await client.get("/v1/uploads/cat.png")).status_code == 404


@pytest.mark.parametrize(
    ("name", "data", "media_type"),
    [
        ("clip.mp4", MP4, "video/mp4"),
        ("clip.MOV", MP4, "video/quicktime"),
        ("clip.mkv", MKV, "video/x-matroska"),
        ("song.wav", WAV, "audio/wav"),
        ("song.m4a", MP4, "audio/mp4"),
        ("song.opus", OGG, "audio/ogg"),
        ("song.mp3", MP3, "audio/mpeg"),
    ],
)
async def test_a_video_or_audio_file_is_kept_as_it_was_sent(
    client: Client, name: str, data: bytes, media_type: str
) -> None:
    item = (await upload(client, name, data=data)).json()
    assert (item["name"], item["media_type"], item["size_bytes"]) == (name, media_type, len(data))
    assert not {"width", "height"} & item.keys()
    assert (await client.get("/v1/uploads")).json()["uploads"] == [item]
    answer = await client.get(f"/v1/uploads/{name}")
    assert (answer.content, answer.headers["Content-Type"]) == (data, media_type)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Disposition" not in answer.headers
    part = await client.get(f"/v1/uploads/{name}", headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, data[1:4])


@pytest.mark.parametrize("name", ["clip.png", "clip", "clip.webm", "clip.html", "mp4"])
async def test_a_video_needs_a_name_with_its_suffix(client: Client, name: str) -> None:
    """Loaders choose the decoder by the suffix, and browsers get the media type that follows."""
    answer = await upload(client, name, data=MP4)
    assert refusal(answer) == (400, "invalid_upload")
    assert ".mp4 or .mov or .m4a" in answer.json()["error"]["message"]


async def test_an_image_with_the_name_of_a_video_is_an_image(client: Client) -> None:
    item = (await upload(client, "cat.mp4")).json()
    assert (item["media_type"], item["width"]) == ("image/png", 3)


@pytest.mark.parametrize("data", [b"<html>", b"RIFF\x10\x00\x00\x00AVI LIST"])
async def test_another_format_is_refused_under_the_name_of_a_video(
    client: Client, data: bytes
) -> None:
    assert refusal(await upload(client, "clip.mp4", data=data)) == (400, "invalid_image")


@pytest.mark.edge(owner_max_upload_bytes=2 * 65_536)
async def test_more_bytes_than_an_owner_may_keep_are_413_and_leave_no_file(
    edge: Edge, client: Client, bob: Client
) -> None:
    """The numbers, what to do, and nothing for others to suffer from."""
    for name in ("a.png", "b.png", "a.png"):
        assert (await upload(client, name)).status_code == 200
    answer = await upload(client, "c.png")
    assert refusal(answer) == (413, "too_many_upload_bytes")
    error = answer.json()["error"]
    assert error["extra_info"] == {"used_bytes": 2 * 65_536, "max_bytes": 2 * 65_536}
    assert "Remove uploads" in error["message"]
    assert await names(client) == ["b.png", "a.png"]
    files = [key async for batch in edge.services.images.files(batch=9) for key in batch]
    assert len(files) == 2
    assert (await upload(bob, "c.png")).status_code == 200


@pytest.fixture
def store(edge: Edge) -> UploadStore:
    store: UploadStore = edge.app.state.replica.submission.uploads
    return store


async def test_the_same_image_is_one_file_under_one_name(edge: Edge, store: UploadStore) -> None:
    first = await store.add_content("alice", png())
    again = await store.add_content("alice", png())
    assert (again.id, again.name) == (first.id, first.name)
    assert (await store.add_content("alice", png(size=(3, 3)))).name != first.name
    assert len(await edge.services.uploads.page("alice", limit=9)) == 2


async def test_racing_repeats_have_one_name(store: UploadStore) -> None:
    adding = (store.add_content("alice", png()) for _ in range(4))
    assert len({each.name for each in await asyncio.gather(*adding)}) == 1


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (content_name(b"no image"), "sent-1.png"),
        (name_for(hash_of(b"no image"), "png"), "blake3-1.png"),
        (copy_name("0199aaaa-0000-7000-8000-000000000001", 0, None), "output-1.png"),
    ],
)
async def test_a_callers_file_has_no_name_that_the_service_gives(
    store: UploadStore, own: str, others: str
) -> None:
    """It would be taken for a file of other content, or be removed with a job."""
    for add, name in itertools.product(
        (store.add, store.add_beside), (own, own.upper(), f"/{own}")
    ):
        with pytest.raises(InvalidUploadName, match="reserved"):
            await add("alice", name, png())
    assert (await store.add("alice", others, png())).name == others
    assert (await store.add_own("alice", own, png())).name == own


async def test_another_owner_has_a_file_of_their_own(store: UploadStore) -> None:
    mine = await store.add_content("alice", png())
    others = await store.add_content("bob", png())
    assert mine.name == others.name
    assert mine.storage_key != others.storage_key
