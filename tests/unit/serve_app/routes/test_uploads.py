"""Uploads: who may send what, and what is kept of it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from events.store.records import Scope
from tests.support.edge import Edge, running_edge
from tests.support.uploads import names, png, upload


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncGenerator[Edge]:
    async with running_edge(tmp_path, max_upload_pixels=10_000) as edge:
        yield edge


async def test_an_upload_is_answered_and_kept_as_a_png(
    edge: Edge, client: httpx.AsyncClient
) -> None:
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
        ("Katze größer 猫 🐈.png", "Katze größer 猫 🐈.png"),
        ("cafe\u0301.png", "café.png"),
        ("a" * 255, "a" * 255),
        ("..\u2215cat.png", "..\u2215cat.png"),
        ("%2e%2e%2fcat.png", "%2e%2e%2fcat.png"),
    ],
)
async def test_a_name_is_a_label_and_no_path(
    edge: Edge, client: httpx.AsyncClient, tmp_path: Path, sent: str, kept: str
) -> None:
    answer = await upload(client, sent)
    assert answer.json()["name"] == kept
    [stored] = [path for path in (tmp_path / "images").rglob("*") if path.is_file()]
    key = stored.relative_to(tmp_path / "images").as_posix()
    assert set(key) <= set("0123456789abcdef-/.uploadsng")
    [row] = await edge.services.uploads.page("alice", limit=2)
    assert row.storage_key == key


@pytest.mark.parametrize(
    "name",
    ["..", "../", " ", "a" * 256, "cat\u202egnp.exe", "cat\x85.png", "cat\x7f.png", "a\u2028b"],
)
async def test_a_name_that_is_none_is_refused(client: httpx.AsyncClient, name: str) -> None:
    answer = await upload(client, name)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_upload"


async def test_a_picture_of_too_many_pixels_is_refused(client: httpx.AsyncClient) -> None:
    answer = await upload(client, data=png(size=(101, 100)))
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_image"
    assert "10000 pixels" in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"overwrite": "false", "subfolder": "a", "type": "temp"}, {}])
async def test_what_comfyuis_clients_send_along_is_passed_over(
    client: httpx.AsyncClient, fields: dict[str, str]
) -> None:
    assert (await upload(client, **fields)).json()["name"] == "cat.png"


async def test_the_same_name_stands_for_the_last_upload(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    first = (await upload(client)).json()
    again = (await upload(client)).json()
    assert again == first
    other = (await upload(client, data=png("blue"))).json()
    assert other["digest"] != first["digest"]
    assert await names(client) == ["cat.png"]
    assert (await edge.services.uploads.page("alice", limit=2))[0].digest == other["digest"]


async def test_uploads_are_paged_newest_first(client: httpx.AsyncClient) -> None:
    for number in range(5):
        await upload(client, f"{number}.png")
    first = (await client.get("/v1/uploads", params={"limit": 3})).json()
    assert [each["name"] for each in first["uploads"]] == ["4.png", "3.png", "2.png"]
    rest = await client.get("/v1/uploads", params={"cursor": first["next_cursor"]})
    assert [each["name"] for each in rest.json()["uploads"]] == ["1.png", "0.png"]
    assert "next_cursor" not in rest.json()
    assert (await client.get("/v1/uploads", params={"cursor": "x"})).status_code == 400


async def test_an_owner_sees_and_removes_only_their_own(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    await upload(client)
    async with await edge.client("bob") as bob:
        assert await names(bob) == []
        assert (await bob.delete("/v1/uploads/cat.png")).status_code == 404
        await upload(bob, data=png("blue"))
    assert (await client.delete("/v1/uploads/cat.png")).status_code == 204
    assert (await client.delete("/v1/uploads/cat.png")).status_code == 404
    assert await names(client) == []
    assert len(await edge.services.uploads.page("bob", limit=2)) == 1


async def test_an_upload_is_given_back_as_it_is_kept(edge: Edge, client: httpx.AsyncClient) -> None:
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
    async with await edge.client("bob") as bob:
        for name in ("cat.png", "dog.png", "a%00b", "%ED%A0%80"):
            assert (await bob.get(f"/v1/uploads/{name}")).status_code in {400, 404}
    await client.delete("/v1/uploads/cat.png")
    assert (await client.get("/v1/uploads/cat.png")).status_code == 404


async def test_the_scopes_are_asked_for(edge: Edge) -> None:
    async with await edge.client(scopes=(Scope.READ,)) as reader:
        assert (await upload(reader)).status_code == 403
        assert (await reader.delete("/v1/uploads/cat.png")).status_code == 403
        assert (await reader.get("/v1/uploads")).status_code == 200


async def test_more_bytes_than_an_owner_may_keep_are_413_and_leave_no_file(tmp_path: Path) -> None:
    """The numbers, what to do, and nothing for others to suffer from."""
    async with (
        running_edge(tmp_path, owner_max_upload_bytes=2 * 65_536) as edge,
        await edge.client() as client,
        await edge.client("bob") as other,
    ):
        for name in ("a.png", "b.png", "a.png"):
            assert (await upload(client, name)).status_code == 200
        answer = await upload(client, "c.png")
        assert answer.status_code == 413
        error = answer.json()["error"]
        assert error["type"] == "too_many_upload_bytes"
        assert error["extra_info"] == {"used_bytes": 2 * 65_536, "max_bytes": 2 * 65_536}
        assert "Remove uploads" in error["message"]
        assert await names(client) == ["b.png", "a.png"]
        files = [key async for batch in edge.services.images.files(batch=9) for key in batch]
        assert len(files) == 2
        assert (await upload(other, "c.png")).status_code == 200
