"""Assets of Comfy API v2."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
from blake3 import blake3
from PIL import Image

from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body
from tests.support.uploads import png

ASSETS = "/api/v2/assets"


def hash_of(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


async def post(client: httpx.AsyncClient, data: bytes, **texts: Any) -> httpx.Response:
    texts = {"content_type": "image/png", "file_path": "photo.png", **texts}
    return await client.post(ASSETS, files={"file": ("photo.png", data)}, data=texts)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_an_upload_has_the_hash_of_what_was_sent(client: httpx.AsyncClient) -> None:
    sent = png()
    first = await post(client, sent, expected_hash=hash_of(sent))
    again = await post(client, sent, file_path="other.png")
    assert (first.status_code, again.status_code) == (201, 200)
    asset = first.json()
    assert asset["hash"] == hash_of(sent)
    assert (asset["created_new"], again.json()["created_new"]) == (True, False)
    assert again.json()["id"] == asset["id"]
    assert asset["file_path"] == "photo.png"
    assert asset["url_expires_at"]
    assert (await client.get(f"{ASSETS}/{asset['id']}")).json()["hash"] == hash_of(sent)


async def test_its_content_comes_whole_or_in_part(client: httpx.AsyncClient) -> None:
    asset = (await post(client, png())).json()
    whole = await client.get(asset["url"])
    assert len(whole.content) == asset["size_bytes"]
    assert Image.open(io.BytesIO(whole.content)).size == (3, 2)
    part = await client.get(asset["url"], headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")
    beyond = await client.get(asset["url"], headers={"Range": "bytes=99999-"})
    assert beyond.status_code == 416


async def test_another_hash_than_was_said_stores_nothing(client: httpx.AsyncClient) -> None:
    answer = await post(client, png(), expected_hash=hash_of(b"other"))
    assert code(answer) == (409, "hash_mismatch")
    assert (await client.get("/v1/uploads")).json()["uploads"] == []


async def test_an_owner_finds_their_own_bytes_by_hash_and_nobody_elses(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    sent = png()
    digest = hash_of(sent)
    assert (await client.head(f"{ASSETS}/by-hash/{digest}")).status_code == 404
    asset = (await post(client, sent)).json()
    assert (await client.head(f"{ASSETS}/by-hash/{digest}")).status_code == 200
    found = await client.post(f"{ASSETS}/from-hash", json={"hash": digest, "file_path": "b.png"})
    assert (found.status_code, found.json()["id"]) == (200, asset["id"])
    assert found.json()["file_path"] == "b.png"
    async with await edge.client("bob") as bob:
        assert (await bob.head(f"{ASSETS}/by-hash/{digest}")).status_code == 404
        minted = await bob.post(f"{ASSETS}/from-hash", json={"hash": digest})
        assert code(minted) == (404, "blob_not_found")
        for path in (f"{ASSETS}/{asset['id']}", f"{ASSETS}/{asset['id']}/content"):
            assert code(await bob.get(path)) == (404, "not_found")
        assert code(await bob.delete(f"{ASSETS}/{asset['id']}")) == (404, "not_found")
        own = await post(bob, sent)
        assert own.status_code == 201  # nothing tells that the bytes were known
    unknown = await client.get(f"{ASSETS}/0199a1b2-0000-7000-8000-000000000000")
    assert code(unknown) == (404, "not_found")


async def test_what_is_deleted_is_gone(client: httpx.AsyncClient) -> None:
    sent = png()
    path = f"{ASSETS}/{(await post(client, sent)).json()['id']}"
    assert (await client.delete(path)).status_code == 204
    assert code(await client.delete(path)) == (404, "not_found")
    assert (await client.head(f"{ASSETS}/by-hash/{hash_of(sent)}")).status_code == 404
    assert (await post(client, sent)).status_code == 201


async def test_a_result_is_an_asset_that_goes_with_its_job(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    job_id = (await client.post("/diffusion/v1/generate", json=diffusion_body())).json()[
        "request_id"
    ]
    await edge.run(job_id)
    path = f"{ASSETS}/{job_id}-0"
    asset = (await client.get(path)).json()
    assert (asset["job_id"], asset["hash"]) == (job_id, None)
    assert (await client.get(f"{path}/content")).content == b"pixels"
    assert code(await client.delete(path)) == (409, "asset_in_use")
    assert code(await client.get(f"{ASSETS}/{job_id}-1")) == (404, "not_found")
    async with await edge.client("bob") as bob:
        assert code(await bob.get(path)) == (404, "not_found")
        assert code(await bob.delete(path)) == (404, "not_found")


@pytest.mark.parametrize("digest", ["", "sha256:00", "blake3:zz", "../x", "blake3:" + "0" * 64])
async def test_a_hash_that_is_none_finds_nothing(client: httpx.AsyncClient, digest: str) -> None:
    answer = await client.post(f"{ASSETS}/from-hash", json={"hash": digest})
    assert code(answer) == (404, "blob_not_found")


async def test_what_is_no_image_and_what_is_no_form_is_refused(client: httpx.AsyncClient) -> None:
    assert code(await post(client, b"text")) == (422, "invalid_image")
    assert (await client.post(ASSETS, data={"file": "text"})).status_code == 415
    bare = await client.post(ASSETS, files={"other": ("a.png", png())})
    assert code(bare) == (422, "invalid_upload")
    assert code(await post(client, b"\x89PNG" + bytes(21 * 1024**2)))[0] == 413
