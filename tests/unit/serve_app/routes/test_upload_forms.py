"""Forms that carry an upload: their shape and their size."""

from __future__ import annotations

from collections.abc import AsyncIterator

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
    "too many fields": form(DISPOSITION + b'name="n"', end=b"\r\n") * 40,
}


async def test_what_is_no_form_with_a_picture_is_refused(client: Client) -> None:
    for case, body in NO_PICTURES.items():
        status, type = refusal(await send(client, body))
        assert status == 400, case
        assert type in {"invalid_upload", "invalid_image"}, case


async def test_another_media_type_is_refused(client: Client) -> None:
    for type in ("application/json", "image/png", "multipart/mixed; boundary=b"):
        assert (await send(client, png(), type)).status_code == 415, type


async def test_any_charset_is_survived(client: Client) -> None:
    content = form(DISPOSITION + b'name="image"; filename="\xff\xfe.png"', png())
    for charset in ("undefined", "idna", "hex", "nonsense", "utf-7"):
        type = f"multipart/form-data; boundary=b; charset={charset}"
        assert (await send(client, content, type)).status_code in {200, 400}, charset


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
