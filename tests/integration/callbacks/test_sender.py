"""The sender against a real receiver that misbehaves."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from email.utils import formatdate
from ipaddress import ip_network

import pytest

from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from settings.callbacks import CallbackSettings
from tests.support.callbacks.receiver import (
    CERTIFICATE,
    Answer,
    Large,
    Receiver,
    drip_body,
    drip_headers,
    hang,
    reset,
    status,
)

SETTINGS = CallbackSettings(timeout_s=0.5, connect_timeout_s=0.3)
LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender(LOOPBACK, settings=SETTINGS)
    yield sender
    await sender.close()


def resolving_to(
    *addresses: str, rule: AddressRule = LOOPBACK, settings: CallbackSettings = SETTINGS
) -> Sender:
    async def resolve(host: str) -> Sequence[str]:
        return addresses

    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    return Sender(rule, settings=settings, resolve=resolve, ssl_context=trusted)


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


async def test_a_redirect_is_an_answer(sender: Sender) -> None:
    async with Receiver() as inside:
        redirect = status(302, headers=f"Location: {inside.url}\r\n")
        async with Receiver([redirect]) as receiver:
            assert (await sender.send(receiver.url, b"{}", {})).status == 302
        assert inside.connections == 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (hang, "no answer within 0.5 s"),
        (drip_headers, "no answer within 0.5 s"),
        (reset, "the connection was lost"),
    ],
)
async def test_no_answer_is_an_error_in_time(sender: Sender, answer: Answer, error: str) -> None:
    async with Receiver([answer]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    assert sent.status is None
    assert sent.error == error
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
    assert not sent.refused


@pytest.mark.parametrize(
    ("value", "low_s", "high_s"),
    [
        ("120", 120, 120),
        ("soon", None, None),
        ("9" * 5000, None, None),
        ("Mon, 01 Jan 99999 00:00:00 GMT", None, None),
    ],
)
async def test_retry_after_is_read(
    sender: Sender, value: str, low_s: float | None, high_s: float | None
) -> None:
    async with Receiver([status(503, headers=f"Retry-After: {value}\r\n")]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    if low_s is None or high_s is None:
        assert sent.retry_after_s is None
    else:
        assert sent.retry_after_s is not None
        assert low_s <= sent.retry_after_s <= high_s


@pytest.mark.parametrize(("ahead_s", "low_s", "high_s"), [(10_000, 9_000, 10_001), (-100, 0, 0)])
async def test_a_date_to_come_back_at_is_read(
    sender: Sender, ahead_s: float, low_s: float, high_s: float
) -> None:
    date = formatdate(time.time() + ahead_s, usegmt=True)
    async with Receiver([status(503, headers=f"Retry-After: {date}\r\n")]) as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
    assert sent.retry_after_s is not None
    assert low_s <= sent.retry_after_s <= high_s


async def test_a_private_address_is_refused_without_a_dial() -> None:
    sender = Sender(AddressRule(), settings=SETTINGS)
    async with Receiver() as receiver:
        sent = await sender.send(receiver.url, b"{}", {})
        assert receiver.connections == 0
    assert sent.refused
    assert sent.error == "127.0.0.1 is not a public address"
    await sender.close()


async def test_one_private_answer_among_others_refuses_the_name() -> None:
    sender = resolving_to("127.0.0.1", "10.0.0.1")
    async with Receiver() as receiver:
        sent = await sender.send(f"http://receiver.test:{receiver.port}/", b"{}", {})
        assert receiver.connections == 0
    assert sent.refused
    assert "10.0.0.1" in (sent.error or "")
    await sender.close()


async def test_a_name_that_changes_its_answer_is_checked_again_at_each_connect() -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str) -> Sequence[str]:
        return next(answers)

    sender = Sender(LOOPBACK, settings=SETTINGS, resolve=resolve)
    close = status(200, headers="Connection: close\r\n")
    async with Receiver([close]) as receiver:
        url = f"http://receiver.test:{receiver.port}/"
        assert (await sender.send(url, b"{}", {})).status == 200
        assert (await sender.send(url, b"{}", {})).refused
        assert receiver.connections == 1
    await sender.close()


async def test_the_next_family_is_dialled_where_the_first_does_not_answer() -> None:
    rule = AddressRule(allow_networks=[ip_network("127.0.0.0/8"), ip_network("::1/128")])
    sender = resolving_to("::1", "127.0.0.1", rule=rule)
    async with Receiver() as receiver:
        sent = await sender.send(f"http://receiver.test:{receiver.port}/", b"{}", {})
    assert sent.status == 200
    await sender.close()


async def test_a_name_that_does_not_resolve_may_do_so_later(sender: Sender) -> None:
    sent = await sender.send("http://receiver.invalid/", b"{}", {})
    assert sent.status is None
    assert not sent.refused


async def test_a_name_server_that_hangs_is_a_connection_that_was_not_made() -> None:
    async def resolve(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    sender = Sender(LOOPBACK, settings=SETTINGS, resolve=resolve)
    sent = await sender.send("http://receiver.test/", b"{}", {})
    assert sent.error == "no connection within 0.3 s"
    await sender.close()


async def test_tls_verifies_the_name_although_an_address_is_dialled() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    sender = resolving_to("127.0.0.1")
    async with Receiver(ssl_context=context) as receiver:
        good = await sender.send(f"https://receiver.test:{receiver.port}/", b"{}", {})
        other = await sender.send(f"https://other.test:{receiver.port}/", b"{}", {})
        assert len(receiver.received) == 1
    assert good.status == 200
    assert other.status is None
    assert "certificate" in (other.error or "").lower()
    await sender.close()


async def test_pools_that_nobody_uses_are_closed() -> None:
    sender = resolving_to("127.0.0.1", settings=CallbackSettings())
    async with Receiver() as receiver:
        for number in range(150):
            url = f"http://r{number}.receiver.test:{receiver.port}/"
            assert (await sender.send(url, b"{}", {})).status == 200
        assert receiver.connections == 150
        await receiver.wait_for_open(128)
    await sender.close()


async def test_those_that_hang_keep_no_connection_from_another(sender: Sender) -> None:
    hanging = [hang] * SETTINGS.per_host
    async with Receiver([*hanging, status(200)]) as receiver, asyncio.TaskGroup() as sends:
        slow = [sends.create_task(sender.send(receiver.url, b"{}", {})) for _ in hanging]
        await receiver.wait_for(len(hanging))
        assert (await sender.send(receiver.url, b"{}", {})).status == 200
        assert not any(each.done() for each in slow)
