"""Uploads: who may send what, what is kept of it, and how a job comes to its files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from engine.graph.declarations import InputFile, node
from engine.nodes import NODE_TYPES
from events.store.records import Scope
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import workflow_body

MAX_BYTES = 50_000


@node("TakeImage", inputs={"image": InputFile()}, outputs=("IMAGE",))
def take_image(context: Any, image: str) -> tuple[bytes]:
    return (context.input_file(image),)


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncGenerator[Edge]:
    limits = {"max_upload_bytes": MAX_BYTES, "max_upload_pixels": 10_000}
    async with running_edge(tmp_path, node_types=(*NODE_TYPES, take_image), **limits) as edge:
        yield edge


def png(colour: str = "red", size: tuple[int, int] = (3, 2)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


async def upload(client: httpx.AsyncClient, name: str = "cat.png", **form: Any) -> httpx.Response:
    data = form.pop("data", None) or png()
    return await client.post("/v1/uploads", files={"image": (name, data)}, data=form)


async def names(client: httpx.AsyncClient) -> list[str]:
    answer = await client.get("/v1/uploads")
    return [each["name"] for each in answer.json()["uploads"]]


def workflow(*files: str) -> dict[str, Any]:
    prompt = {}
    for number, name in enumerate(files):
        prompt[f"t{number}"] = {"class_type": "TakeImage", "inputs": {"image": name}}
        images = {"images": [f"t{number}", 0], "filename_prefix": ""}
        prompt[f"s{number}"] = {"class_type": "SaveImage", "inputs": images}
    return {"prompt": prompt}


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


def form(head: bytes, data: bytes = b"x", *, end: bytes = b"\r\n--b--\r\n") -> bytes:
    return b"--b\r\n" + head + b"\r\n\r\n" + data + end


async def send(
    client: httpx.AsyncClient, content: bytes | AsyncIterator[bytes], type: str = "", **more: str
) -> httpx.Response:
    headers = {"Content-Type": type or "multipart/form-data; boundary=b", **more}
    return await client.post("/v1/uploads", content=content, headers=headers)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        form(b'Content-Disposition: form-data; name="image"; filename="a\0b.png"', png()),
        form(b'Content-Disposition: form-data; name="image"', b"no file"),
        form(b'Content-Disposition: form-data; name="other"; filename="a.png"', png()),
        form(b'Content-Disposition: form-data; filename="a.png"', png()),
        form(b'Content-Disposition: form-data; name="image"; filename=""', png()),
        form(b'Content-Disposition: form-data; name="image"; filename="a.png"', png(), end=b""),
        form(b'Content-Disposition: form-data; name="image"; filename="a.png"', b"no picture"),
        form(b"X: 1", png()),
        b"".join(form(b'Content-Disposition: form-data; name="n"', end=b"\r\n") for _ in range(40)),
    ],
    ids=[
        "nothing", "no form", "NUL in the name", "no file", "other field", "no field", "no name",
        "no end", "no picture", "no disposition", "too many fields",
    ],
)  # fmt: skip
async def test_what_is_no_form_with_a_picture_is_refused(
    client: httpx.AsyncClient, body: bytes
) -> None:
    answer = await send(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] in {"invalid_upload", "invalid_image"}


@pytest.mark.parametrize("type", ["application/json", "image/png", "multipart/mixed; boundary=b"])
async def test_another_media_type_is_refused(client: httpx.AsyncClient, type: str) -> None:
    assert (await send(client, png(), type)).status_code == 415


@pytest.mark.parametrize("charset", ["undefined", "idna", "hex", "nonsense", "utf-7"])
async def test_any_charset_is_survived(client: httpx.AsyncClient, charset: str) -> None:
    head = b'Content-Disposition: form-data; name="image"; filename="\xff\xfe.png"'
    type = f"multipart/form-data; boundary=b; charset={charset}"
    assert (await send(client, form(head, png()), type)).status_code in {200, 400}


async def test_a_file_is_refused_as_soon_as_it_is_too_large(client: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        while sent < 100 * MAX_BYTES:
            sent += 1000
            yield bytes(1000)

    answer = await send(client, endless())
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "too_large"
    assert sent < 3 * MAX_BYTES
    assert (await upload(client, data=bytes(MAX_BYTES + 1))).status_code == 413
    assert (await upload(client, data=bytes(MAX_BYTES))).status_code == 400


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


async def test_the_scopes_are_asked_for(edge: Edge) -> None:
    async with await edge.client(scopes=(Scope.READ,)) as reader:
        assert (await upload(reader)).status_code == 403
        assert (await reader.delete("/v1/uploads/cat.png")).status_code == 403
        assert (await reader.get("/v1/uploads")).status_code == 200


async def test_a_job_records_the_files_as_they_were(edge: Edge, client: httpx.AsyncClient) -> None:
    await upload(client)
    await upload(client, "dog.png", data=png("blue"))
    body = workflow("cat.png", "dog.png", "cat.png")
    accepted = await client.post("/workflow/v1/generate", json=body)
    assert accepted.status_code == 202
    await upload(client, data=png("green"))
    await client.delete("/v1/uploads/dog.png")

    files = (await edge.job(accepted.json()["request_id"])).submitted.input_files
    assert files is not None
    assert list(files) == ["cat.png", "dog.png"]
    shown = (await client.get(f"/v1/jobs/{accepted.json()['request_id']}")).json()
    assert shown["input_files"] == {name: file.digest for name, file in files.items()}
    for name, colour in (("cat.png", "red"), ("dog.png", "blue")):
        data = await edge.services.images.get(files[name].key)
        assert files[name].digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert Image.open(io.BytesIO(data)).getpixel((0, 0)) == Image.new(
            "RGB", (1, 1), colour
        ).getpixel((0, 0))
    refused = await client.post("/workflow/v1/generate", json=workflow("dog.png"))
    assert refused.status_code == 400


async def test_a_job_without_files_records_none(edge: Edge, client: httpx.AsyncClient) -> None:
    accepted = await client.post("/workflow/v1/generate", json=workflow_body())
    assert (await edge.job(accepted.json()["request_id"])).submitted.input_files is None


async def test_a_file_that_the_owner_does_not_have_is_not_in_the_list(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    async with await edge.client("bob") as bob:
        await upload(bob, "bobs.png")
    await upload(client)
    await upload(client, "dog.png")
    body = workflow("cat.png", "bobs.png")
    answer = await client.post("/workflow/v1/generate", json=body)
    assert answer.status_code == 400
    [error] = answer.json()["node_errors"]["t1"]["errors"]
    assert error["type"] == "value_not_in_list"
    assert error["details"] == "image: 'bobs.png' not in [cat.png, dog.png]"


async def test_a_repeat_with_a_key_finds_its_job_after_the_file_is_gone(
    client: httpx.AsyncClient,
) -> None:
    await upload(client)
    headers = {"Idempotency-Key": "once"}
    first = await client.post("/workflow/v1/generate", json=workflow("cat.png"), headers=headers)
    await client.delete("/v1/uploads/cat.png")
    again = await client.post("/workflow/v1/generate", json=workflow("cat.png"), headers=headers)
    assert again.status_code == 202
    assert again.json()["request_id"] == first.json()["request_id"]


async def test_object_info_lists_the_callers_uploads(edge: Edge, client: httpx.AsyncClient) -> None:
    await upload(client)
    info = (await client.get("/v1/object_info")).json()
    assert info["TakeImage"]["input"]["required"]["image"] == [["cat.png"], {"image_upload": True}]
    async with await edge.client("bob") as bob:
        info = (await bob.get("/v1/object_info")).json()
    assert info["TakeImage"]["input"]["required"]["image"][0] == []


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.binary(max_size=60))
async def test_no_form_gets_a_500(client: httpx.AsyncClient, data: bytes, head: bytes) -> None:
    for body in (data, form(head, data)):
        assert (await send(client, body)).status_code == 400
