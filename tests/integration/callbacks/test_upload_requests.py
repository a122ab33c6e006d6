"""Images sent by PUT to a real receiver, as a bucket takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors.callbacks.presigned_uploads import PresignedUploads
from storage.images import ImageStore, ImageStoreUnavailable
from tests.support.callbacks.receiver import Receiver, hang, sending
from tests.support.events import image

DATA = bytes(range(256)) * 4096
STORED = image(0, key="job/1/0.webp", size_bytes=len(DATA), media_type="image/webp")
TIMEOUT_S = 0.5


@pytest.fixture
async def images() -> ImageStore:
    images = ImageStore("memory://")
    await images.put(STORED.key, DATA)
    return images


@pytest.fixture
async def puts(images: ImageStore) -> AsyncIterator[PresignedUploads]:
    async with sending(timeout_s=9, connect_timeout_s=0.3) as sender:
        yield PresignedUploads(sender, images, secret=b"a secret", timeout_s=TIMEOUT_S)


async def test_a_bucket_gets_the_file_as_it_is_with_its_length(puts: PresignedUploads) -> None:
    async with Receiver() as receiver:
        url = receiver.url + "/0.webp?X-Amz-Signature=a%2Fb&x=%20"
        sent = await puts.send(url, STORED)
        assert (sent.status, sent.error) == (200, None)
        (request,) = receiver.received
    assert request.request_line == "PUT /hook/0.webp?X-Amz-Signature=a%2Fb&x=%20 HTTP/1.1"
    assert request.body == DATA
    assert request.headers["content-type"] == "image/webp"
    assert request.headers["content-length"] == str(len(DATA))
    assert "transfer-encoding" not in request.headers


async def test_a_bucket_that_hangs_is_given_up_in_time(puts: PresignedUploads) -> None:
    async with Receiver([hang]) as receiver:
        sent = await puts.send(receiver.url, STORED)
    assert (sent.status, sent.error) == (None, "no answer within 0.5 s")


async def test_an_answer_before_the_file_was_taken_counts(puts: PresignedUploads) -> None:
    async def forbid(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(forbid, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sent = await puts.send(f"http://127.0.0.1:{port}/0", STORED)
    assert sent.status == 403 or sent.is_transient  # a system may reset what it has not read


async def test_a_store_that_fails_is_no_try(puts: PresignedUploads, images: ImageStore) -> None:
    class Away(ImageStore):
        async def get(self, key: str, part: range | None = None) -> bytes:
            if part is not None and part.start:
                raise ImageStoreUnavailable("away")
            return await images.get(key, part)

    async with Receiver() as receiver, sending() as sender:
        away = PresignedUploads(sender, Away("memory://"), secret=b"", timeout_s=TIMEOUT_S)
        with pytest.raises(ImageStoreUnavailable):
            await away.send(receiver.url, STORED)


async def test_azure_is_told_what_it_asks_for(puts: PresignedUploads) -> None:
    async with Receiver() as receiver:
        for host in ("me.blob.core.windows.net", "example.com"):
            await puts.send(f"http://{host}:{receiver.port}/0", STORED)
        told = [request.headers.get("x-ms-blob-type") for request in receiver.received]
    assert told == ["BlockBlob", None]
