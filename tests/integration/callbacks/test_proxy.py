"""Callbacks through an outbound proxy."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

import pytest

from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from settings.callbacks import CallbackSettings
from tests.support.callbacks.proxy import ConnectProxy, running_proxy
from tests.support.callbacks.receiver import CERTIFICATE, Receiver

LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])


def through(proxy: ConnectProxy, *, login: str = "", answers: Sequence[str] = ()) -> Sender:
    async def resolve(host: str) -> Sequence[str]:
        return answers or ("127.0.0.1",)

    settings: dict[str, Any] = {
        "proxy": f"http://{login}127.0.0.1:{proxy.port}",
        "timeout_s": 2.0,
        "connect_timeout_s": 1.0,
    }
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    return Sender(
        LOOPBACK, settings=CallbackSettings(**settings), resolve=resolve, ssl_context=trusted
    )


async def test_the_proxy_is_given_the_checked_address_and_never_the_name() -> None:
    async with running_proxy() as proxy, Receiver() as receiver:
        sender = through(proxy)
        sent = await sender.send(f"http://receiver.test:{receiver.port}/hook", b"{}", {})
        await sender.close()
    assert sent.status == 200
    assert receiver.received[0].headers["host"] == f"receiver.test:{receiver.port}"
    [asked] = proxy.requests
    assert asked == {"target": f"127.0.0.1:{receiver.port}", "host": f"127.0.0.1:{receiver.port}"}


async def test_tls_goes_through_it_and_verifies_the_name() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with running_proxy() as proxy, Receiver(ssl_context=context) as receiver:
        sender = through(proxy)
        good = await sender.send(f"https://receiver.test:{receiver.port}/", b"{}", {})
        other = await sender.send(f"https://other.test:{receiver.port}/", b"{}", {})
        await sender.close()
    assert good.status == 200
    assert "certificate" in (other.error or "").lower()


async def test_the_login_goes_to_the_proxy_and_not_to_the_receiver() -> None:
    async with running_proxy() as proxy, Receiver() as receiver:
        sender = through(proxy, login="user:p%40ss@")
        assert (await sender.send(receiver.url, b"{}", {})).status == 200
        await sender.close()
    credentials = base64.b64encode(b"user:p@ss").decode()
    assert proxy.requests[0]["proxy-authorization"] == f"Basic {credentials}"
    assert not any("auth" in name for name in receiver.received[0].headers)


async def test_an_address_that_is_not_allowed_is_not_even_asked_for() -> None:
    async with running_proxy() as proxy:
        sender = through(proxy, answers=("127.0.0.1", "10.0.0.1"))
        sent = await sender.send("http://receiver.test:8080/", b"{}", {})
        await sender.close()
    assert sent.refused
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "the proxy answered 403"),
        (b"HTTP/1.1 407 Log in\r\nProxy-Authenticate: Basic\r\n\r\n", "the proxy answered 407"),
        (b"", "did not answer as one"),
        (b"SSH-2.0-x\r\n\r\n", "the proxy answered"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n ", "did not answer as one"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, "did not answer as one"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_a_connection_that_was_not_made(
    refusal: bytes, error: str
) -> None:
    async with running_proxy(refusal) as proxy:
        sender = through(proxy)
        sent = await sender.send("http://receiver.test:8080/", b"{}", {})
        await sender.close()
    assert (sent.status, sent.refused) == (None, False)
    assert error in (sent.error or "")


async def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_proxy() as proxy, Receiver() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        sender = Sender(LOOPBACK, settings=CallbackSettings())
        assert (await sender.send(receiver.url, b"{}", {})).status == 200
        await sender.close()
    assert proxy.requests == []
