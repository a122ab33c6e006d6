"""Forms that carry an upload: their shape and their size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.edge import Client, refusal
from tests.support.uploads import png, upload

MAX_BYTES = 50_000


pytestmark = pytest.mark.edge(max_upload_bytes=MAX_BYTES, max_unread_body_bytes=0)


def form(head: bytes, data: bytes = b"x", *, end: bytes = b"\r\n--b--\r\n") -> bytes:
    return b"--b\r\n" + head + b"\r\n\r\n" + data + end


async def send(
    client: Client, content: bytes | AsyncIterator[bytes], type: str = "", **more: str
) -> httpx.Response:
    headers = {"Content-Type": type or "multipart/form-data; boundary=b", **more}
    return await client.post("/v1/uploads", content=content, headers=headers)


DISPOSITION = b"Content-Disposition: form-data; "
NAMED = DISPOSITION + b'name="image"; filename="a.png"'
NO_PICTURES = {
    "nothing": b"",
    "no form": b"no form",
    "NUL in the name": form(DISPOSITION + b'name="image"; filename="a\0b.png"', png()),
    "no file": form(DISPOSITION + b'name="image"', b"no file"),
    "other field": form(DISPOSITION + b'name="other"; filename="a.png"', png()),
    "no field": form(DISPOSITION + b'filename="a.png"', png()),
    "no name": form(DISPOSITION + b'name="image"; filename=""', png()),
    "no end": form(NAMED, png(), end=b""),
    "no picture": form(NAMED, b"no picture"),
    "no disposition": form(b"X: 1", png()),
    "other field in the form of RFC 5987": form(
        DISPOSITION + b"name=\"other\"; filename*=utf-8''a.png", png()
    ),
    "too many fields": form(DISPOSITION + b'name="n"', end=b"\r\n") * 40,
}


async def test_what_is_no_form_with_a_picture_is_refused(client: Client) -> None:
    for case, body in NO_PICTURES.items():
        status, type = refusal(await send(client, body))
        assert status == 400, case
        assert type in {"invalid_upload", "invalid_image"}, case


NAMES = {
    b"filename*=UTF-8''b%C3%A4r.png": "bär.png",
    b"filename*=utf-8'de'b%20c.png": "b c.png",
    b"filename*=iso-8859-1''%e4.png": "ä.png",
    b"filename=\"=?utf-8?B?w6Q=?=\"; filename*=utf-8''%C3%A4.png": "ä.png",
    b"FileName*=\"UTF-8''a.png\"": "a.png",
    b"filename=a.png; filename*=utf-8''b.png": "b.png",
    b"filename=a.png; filename*=utf-7''b.png": "a.png",
    b"filename=\"a.png\"; filename*=utf-8''%ff.png": "a.png",
    b"filename=\"a; filename*=utf-8''b.png\"": "a; filename*=utf-8''b.png",
    b"filename*=utf-7''b.png": None,
    b"filename*=b.png": None,
    b"filename*=": None,
}


@pytest.mark.parametrize(("parameters", "name"), NAMES.items(), ids=range(len(NAMES)))
async def test_a_name_may_be_in_the_form_of_rfc_5987(
    client: Client, parameters: bytes, name: str | None
) -> None:
    answer = await send(client, form(DISPOSITION + b'name="image"; ' + parameters, png()))
    if name is None:
        assert refusal(answer) == (400, "invalid_upload")
    else:
        assert answer.json()["name"] == name


async def test_files_of_other_fields_are_ignored(client: Client) -> None:
    files: list[Any] = [
        ("mask", ("m.png", png("white"))),
        ("image", ("a.png", png())),
        ("overwrite", ("overwrite", "true")),
        ("other", ("", b"")),
        ("other", ("o.bin", bytes(MAX_BYTES // 2))),
    ]
    answer = await client.post("/v1/uploads", files=files)
    assert answer.json()["name"] == "a.png"
    extended = form(DISPOSITION + b"name=other; filename*=utf-8''b.png", png("blue"), end=b"\r\n")
    answer = await send(client, extended + form(NAMED, png()))
    assert answer.json()["name"] == "a.png"
    too_large = [*files, ("more", ("m.bin", bytes(3 * MAX_BYTES)))]
    assert (await client.post("/v1/uploads", files=too_large)).status_code == 413
    too_many = [*files, *[(f"f{number}", ("f", b"")) for number in range(40)]]
    assert (await client.post("/v1/uploads", files=too_many)).status_code == 400


async def test_another_media_type_is_refused(client: Client) -> None:
    for type in ("application/json", "image/png", "multipart/mixed; boundary=b"):
        assert (await send(client, png(), type)).status_code == 415, type


async def test_only_the_usual_charsets_are_decoded(client: Client) -> None:
    content = form(DISPOSITION + b'name="image"; filename="\xe4.png"', png())
    for charset in ("punycode", "undefined", "idna", "hex", "nonsense", "utf-7", "a\0", ""):
        type = f"multipart/form-data; boundary=b; charset={charset}"
        assert refusal(await send(client, content, type)) == (400, "invalid_upload"), charset
    for charset in ("UTF-8", '"utf-8"', "ISO-8859-1", "latin-1", "us-ascii"):
        type = f"Multipart/Form-Data; charset={charset}; boundary=b"
        assert (await send(client, content, type)).status_code == 200, charset


async def test_a_file_is_refused_as_soon_as_it_is_too_large(client: Client) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b"--b\r\n" + NAMED + b"\r\n\r\n"
        while sent < 100 * MAX_BYTES:
            sent += 1000
            yield bytes(1000)

    assert refusal(await send(client, endless())) == (413, "too_large")
    assert sent < 3 * MAX_BYTES
    assert (await upload(client, data=bytes(MAX_BYTES + 1))).status_code == 413
    assert (await upload(client, data=bytes(MAX_BYTES))).status_code == 400


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.binary(max_size=60))
async def test_no_form_gets_a_500(client: Client, data: bytes, head: bytes) -> None:
    for body in (data, form(head, data)):
        assert (await send(client, body)).status_code == 400
