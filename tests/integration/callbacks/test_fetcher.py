"""Images fetched from a real server over TLS, which misbehaves in many ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from actors.fetcher import Fetcher
from events.callback_address import Resolve
from events.errors import FetchFailed
from tests.support.callbacks.receiver import (
    LOOPBACK,
    Answer,
    Receiver,
    client_tls,
    drip_headers,
    flood_interim,
    hang,
    reset,
    resolving_to,
    server_tls,
)

PICTURE = b"\x89PNG and so on"


def answer(status: int = 200, body: bytes = PICTURE, **headers: str) -> Answer:
    said = {"content-type": "image/png", "content-length": str(len(body))}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Any", *[f"{name}: {value}" for name, value in said.items()]]

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    return send


def fetcher(*answers: Sequence[str], resolve: Resolve | None = None, **options: Any) -> Fetcher:
    """A fetcher for which every name has these answers."""
    return Fetcher(
        LOOPBACK,
        connect_timeout_s=0.3,
        max_redirects=2,
        resolve=resolve or resolving_to(*(answers or [["127.0.0.1"]])),
        ssl_context=client_tls(),
        **{"max_bytes": 1000} | options,
    )


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver(ssl_context=server_tls()) as receiver:
        yield receiver


async def fetched(receiver: Receiver, *answers: Answer, timeout_s: float = 20.0) -> bytes:
    receiver.answers = list(answers)
    url = f"https://receiver.test:{receiver.port}/a.png?b=c"
    return await fetcher().fetch(url, timeout_s=timeout_s)


@pytest.mark.parametrize("media_type", ["image/png", "IMAGE/JPEG; a=b", "binary/octet-stream"])
async def test_the_image_is_what_the_server_sends(receiver: Receiver, media_type: str) -> None:
    assert await fetched(receiver, answer(content_type=media_type)) == PICTURE
    (request,) = receiver.received
    assert request.request_line == "GET /a.png?b=c HTTP/1.1"
    assert request.headers.keys() == {"host", "user-agent", "accept", "accept-encoding"}


async def test_redirects_are_followed_up_to_a_number(receiver: Receiver) -> None:
    on = answer(302, b"", location="/other.png")
    assert await fetched(receiver, on, on, answer()) == PICTURE
    assert receiver.received[-1].request_line.startswith("GET /other.png ")
    with pytest.raises(FetchFailed, match="more than 2 times"):
        await fetched(receiver, on)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://receiver.test/a.png", "must be https"),
        ("https://169.254.169.254/latest/meta-data", "not a public address"),
        ("https://inside.test/a.png", "inside.test resolves to an address that is not public"),
        ("https://user:password@receiver.test/", "user name"),
        ("file:///etc/passwd", "scheme"),
        ("//[::1]/a.png", "not a public address"),
        ("//[::1", "no valid address"),
        ("https://127.0.0.1:22/", "port 22"),
    ],
)
async def test_a_redirect_leads_nowhere_that_a_url_may_not(
    receiver: Receiver, location: str, why: str
) -> None:
    async def resolve(host: str) -> Sequence[str]:
        return ["10.0.0.1"] if host == "inside.test" else ["127.0.0.1"]

    receiver.answers = [answer(302, b"", location=location)]
    with pytest.raises(FetchFailed, match=why):
        await fetcher(resolve=resolve).fetch(
            f"https://receiver.test:{receiver.port}/", timeout_s=20
        )
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([answer(404)], "404"),
        ([answer(206)], "206"),
        ([answer(302)], "302"),
        ([answer(content_type="text/html")], "text/html"),
        ([answer(content_type="image/svg+xml")], "svg"),
        ([answer(content_type="")], "nothing"),
        ([answer(content_encoding="gzip")], "Content-Encoding"),
        ([answer(body=b"a" * 1001)], "1000 bytes"),
        ([answer(content_length="9" * 18)], "1000 bytes"),
        ([answer(content_length="9" * 30)], "connection|1000 bytes"),
        ([reset], "connection"),
    ],
)
async def test_what_is_no_image_is_refused(
    receiver: Receiver, answers: list[Answer], why: str
) -> None:
    with pytest.raises(FetchFailed, match=why):
        await fetched(receiver, *answers)


@pytest.mark.parametrize("slow", [hang, drip_headers, flood_interim])
async def test_a_slow_server_is_given_up(receiver: Receiver, slow: Answer) -> None:
    with pytest.raises(FetchFailed, match="in time"):
        await fetched(receiver, slow, timeout_s=0.5)


async def test_a_body_in_tiny_chunks_is_given_up(receiver: Receiver) -> None:
    async def tiny(writer: asyncio.StreamWriter) -> None:
        head = "HTTP/1.1 200 Any\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"1\r\na\r\n" * 5000)
        await writer.drain()

    receiver.answers = [tiny]
    url = f"https://receiver.test:{receiver.port}/"
    with pytest.raises(FetchFailed, match="too many small parts"):
        await fetcher(max_bytes=10_000).fetch(url, timeout_s=20)


async def test_a_name_that_turns_to_another_address_is_looked_up_once(receiver: Receiver) -> None:
    receiver.answers = [answer()]
    url = f"https://receiver.test:{receiver.port}/"
    changing = fetcher(["127.0.0.1"], ["10.0.0.1"])
    assert await changing.fetch(url, timeout_s=20) == PICTURE
    with pytest.raises(FetchFailed, match="resolves to an address that is not"):
        await changing.fetch(url, timeout_s=20)
    assert len(receiver.received) == 1


@pytest.mark.parametrize("host", ["other.test", "127.0.0.1"])
async def test_the_name_of_the_server_is_verified(receiver: Receiver, host: str) -> None:
    receiver.answers = [answer()]
    with pytest.raises(FetchFailed, match="connection"):
        await fetcher().fetch(f"https://{host}:{receiver.port}/", timeout_s=20)


async def test_a_name_that_nobody_knows_is_refused() -> None:
    async def unknown(host: str) -> Sequence[str]:
        raise OSError("no such host")

    with pytest.raises(FetchFailed):
        await fetcher(resolve=unknown).fetch("https://receiver.test/", timeout_s=20)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_look_up_that_hangs_is_over_before_another_may_begin(fails: bool) -> None:
    may_end, ended = asyncio.Event(), False

    async def hanging(host: str) -> Sequence[str]:
        nonlocal ended
        await may_end.wait()
        ended = True
        if fails:
            raise OSError("no such host")
        return ["127.0.0.1"]

    fetch = asyncio.create_task(
        fetcher(resolve=hanging).fetch("https://receiver.test/", timeout_s=0.05)
    )
    _, pending = await asyncio.wait({fetch}, timeout=0.6)
    assert pending
    may_end.set()
    with pytest.raises(FetchFailed, match="in time"):
        await fetch
    assert ended
