"""The sender against a real receiver that misbehaves."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Sequence
from email.utils import formatdate
from ipaddress import ip_network

import pytest

from actors.callbacks.receivers import PER_HOST
from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from tests.support.callbacks.receiver import (
    LOOPBACK,
    Answer,
    Large,
    Receiver,
    drip_body,
    drip_headers,
    flood_headers,
    flood_interim,
    hang,
    reset,
    sending,
    server_tls,
    status,
)

TIMES = {"timeout_s": 0.5, "connect_timeout_s": 0.3}


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender(LOOPBACK, **TIMES)
    yield sender
    await sender.close()


async def test_the_request_is_the_body_and_the_headers_that_were_given(sender: Sender) -> None:
    async with Receiver() as receiver:
        url = receiver.url + "?a=%20b&ü=1"
        sent = await sender.send(url, b'{"a": 1}', {"webhook-id": "msg_1"})
        assert (sent.status, sent.error, sent.refused) == (200, None, False)
        (request,) = receiver.received
        assert request.request_line == "POST /hook?a=%20b&%C3%BC=1 HTTP/1.1"
        assert request.body == b'{"a": 1}'
        assert request.headers.pop("user-agent").startswith("Darkroom/")
        assert request.headers == {
            "host": f"127.0.0.1:{receiver.port}",
            "accept": "*/*",
            "accept-encoding": "identity",
            "webhook-id": "msg_1",
            "content-length": "8",
        }


async def test_a_connection_is_kept_and_no_cookie_comes_back(sender: Sender) -> None:
    cookie = status(200, headers="Set-Cookie: a=b\r\n")
    async with Receiver([cookie]) as receiver:
        for _ in range(3):
            await sender.send(receiver.url, b"{}", {})
        assert receiver.connections == 1
        assert not any("cookie" in request.headers for request in receiver.received)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hang, "no answer within 0.5 s"),
        (drip_headers, "no answer within 0.5 s"),
        (flood_headers, "Protocol|no answer"),
        (flood_interim, "Protocol|no answer"),
        (reset, "the connection was lost"),
    ],
)
async def test_no_answer_is_an_error_in_time(sender: Sender, answer: Answer, error: str) -> None:
    async with Receiver([answer]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    assert sent.status is None
    assert re.search(error, sent.error or "")
    assert sent.latency_s < 2


async def test_a_status_counts_even_if_the_body_never_ends(sender: Sender) -> None:
    async with Receiver([drip_body]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    assert (sent.status, sent.error) == (200, None)
    assert sent.latency_s < 2


async def test_a_large_answer_is_cut(sender: Sender) -> None:
    large = Large(100_000_000)
    async with Receiver([large]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    assert sent.status == 200
    assert large.written_bytes < 20_000_000, "beyond what the sockets' buffers took"


async def test_nobody_listens(sender: Sender) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        sent = await sender.send(f"http://127.0.0.1:{free.getsockname()[1]}/", b"{}", {})
    assert sent.status is None
    assert sent.error is not None
    assert "127.0.0.1" not in sent.error
    assert not sent.refused


@pytest.mark.parametrize(
    ("value", "low_s", "high_s"),
    [
        ("120", 120, 120),
        (10_000, 9_000, 10_001),
        (-100, 0, 0),
        ("soon", None, None),
        ("9" * 5000, None, None),
        ("Mon, 01 Jan 99999 00:00:00 GMT", None, None),
    ],
)
async def test_retry_after_is_read(
    sender: Sender, value: str | int, low_s: float | None, high_s: float | None
) -> None:
    """A number stands for the date that many seconds from now."""
    text = formatdate(time.time() + value, usegmt=True) if isinstance(value, int) else value
    async with Receiver([status(503, headers=f"Retry-After: {text}\r\n")]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    if low_s is None or high_s is None:
        assert sent.retry_after_s is None
    else:
        assert sent.retry_after_s is not None
        assert low_s <= sent.retry_after_s <= high_s


async def test_the_next_family_is_dialled_where_the_first_does_not_answer() -> None:
    rule = AddressRule(allow_networks=[ip_network("127.0.0.0/8"), ip_network("::1/128")])
    answers = [("::1", "127.0.0.1")]
    async with Receiver() as receiver, sending(rule, answers=answers, **TIMES) as sender:
        sent = await sender.send(f"http://receiver.test:{receiver.port}/", b"{}", {})
    assert sent.status == 200


async def test_a_name_that_does_not_resolve_may_do_so_later(sender: Sender) -> None:
    sent = await sender.send("http://receiver.invalid/", b"{}", {})
    assert sent.status is None
    assert not sent.refused


async def test_a_name_server_that_hangs_is_a_connection_that_was_not_made() -> None:
    async def resolve(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    sender = Sender(LOOPBACK, **TIMES, resolve=resolve)
    sent = await sender.send("http://receiver.test/", b"{}", {})
    assert sent.error == "no connection within 0.3 s"
    await sender.close()


async def test_tls_verifies_the_name_although_an_address_is_dialled() -> None:
    async with Receiver(ssl_context=server_tls()) as receiver, sending(**TIMES) as sender:
        good = await sender.send(f"https://receiver.test:{receiver.port}/", b"{}", {})
        other = await sender.send(f"https://other.test:{receiver.port}/", b"{}", {})
        assert len(receiver.received) == 1
    assert good.status == 200
    assert other.status is None
    assert "certificate" in (other.error or "").lower()


async def test_pools_that_nobody_uses_are_closed() -> None:
    async with Receiver() as receiver, sending() as sender:
        for number in range(150):
            url = f"http://r{number}.receiver.test:{receiver.port}/"
            assert (await sender.send(url, b"{}", {})).status == 200
        assert receiver.connections == 150
        await receiver.wait_for_open(128)


async def test_those_that_hang_keep_no_connection_from_another(sender: Sender) -> None:
    hanging = [hang] * PER_HOST
    async with Receiver([*hanging, status(200)]) as receiver, asyncio.TaskGroup() as sends:
        slow = [sends.create_task(sender.send(receiver.url, b"{}", {})) for _ in hanging]
        await receiver.wait_for(len(hanging))
        assert (await sender.send(receiver.url, b"{}", {})).status == 200
        assert not any(each.done() for each in slow)
