"""Images sent by PUT to a real receiver, as a bucket takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_network

import pytest

from actors.callbacks.image_puts import ImagePuts
from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from settings.callbacks import CallbackSettings, ImagePutSettings
from storage.images import ImageStore, ImageStoreUnavailable
from tests.support.callbacks.receiver import Receiver, hang, status
from tests.support.events import image

LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])
DATA = bytes(range(256)) * 4096
STORED = image(0, key="job/1/0.webp", size_bytes=len(DATA), media_type="image/webp")
SETTINGS = ImagePutSettings(timeout_s=0.5)


@pytest.fixture
async def images() -> ImageStore:
    images = ImageStore("memory://")
    await images.put(STORED.key, DATA)
    return images


@pytest.fixture
async def puts(images: ImageStore) -> AsyncIterator[ImagePuts]:
    sender = Sender(LOOPBACK, settings=CallbackSettings(timeout_s=9, connect_timeout_s=0.3))
    yield ImagePuts(sender, images, secret=b"a secret", settings=SETTINGS)
    await sender.close()


async def test_a_bucket_gets_the_file_as_it_is_with_its_length(puts: ImagePuts) -> None:
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


async def test_a_redirect_is_an_answer(puts: ImagePuts) -> None:
    async with Receiver() as inside:
        redirect = status(307, headers=f"Location: {inside.url}\r\n")
        async with Receiver([redirect]) as receiver:
            assert (await puts.send(receiver.url, STORED)).status == 307
        assert inside.received == []


async def test_a_bucket_that_hangs_is_given_up_in_time(puts: ImagePuts) -> None:
    async with Receiver([hang]) as receiver:
        sent = await puts.send(receiver.url, STORED)
    assert (sent.status, sent.error) == (None, "no answer within 0.5 s")


async def test_an_answer_before_the_file_was_taken_counts(puts: ImagePuts) -> None:
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
    assert sent.status == 403 or sent.may_pass  # a system may reset what it has not read


async def test_an_address_inside_is_refused_at_the_connection(puts: ImagePuts) -> None:
    sent = await puts.send("http://10.0.0.1/0.webp", STORED)
    assert (sent.refused, sent.error) == (True, "10.0.0.1 is not a public address")


async def test_a_store_that_fails_is_no_try(puts: ImagePuts, images: ImageStore) -> None:
    class Away(ImageStore):
        async def get(self, key: str, part: range | None = None) -> bytes:
            if part is not None and part.start:
                raise ImageStoreUnavailable("away")
            return await images.get(key, part)

    sender = Sender(LOOPBACK, settings=CallbackSettings())
    away = ImagePuts(sender, Away("memory://"), secret=b"", settings=SETTINGS)
    async with Receiver() as receiver:
        with pytest.raises(ImageStoreUnavailable):
            await away.send(receiver.url, STORED)
        await sender.close()


async def test_azure_is_told_what_it_asks_for(images: ImageStore) -> None:
    async def resolve(_host: str) -> list[str]:
        return ["127.0.0.1"]

    sender = Sender(LOOPBACK, settings=CallbackSettings(), resolve=resolve)
    named = ImagePuts(sender, images, secret=b"", settings=SETTINGS)
    async with Receiver() as receiver:
        for host in ("me.blob.core.windows.net", "example.com"):
            await named.send(f"http://{host}:{receiver.port}/0", STORED)
        told = [request.headers.get("x-ms-blob-type") for request in receiver.received]
        await sender.close()
    assert told == ["BlockBlob", None]
