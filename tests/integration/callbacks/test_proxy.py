"""Callbacks through an outbound proxy."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.callbacks.proxy import ConnectProxy, running_proxy
from tests.support.callbacks.receiver import Receiver, sending, server_tls


def through(proxy: ConnectProxy, *, login: str = "", **options: Any) -> Any:
    """A sender that uses the proxy."""
    url = SecretStr(f"http://{login}127.0.0.1:{proxy.port}")
    return sending(proxy=url, timeout_s=2.0, connect_timeout_s=1.0, **options)


async def test_the_proxy_is_given_the_checked_address_and_never_the_name() -> None:
    async with running_proxy() as proxy, Receiver() as receiver, through(proxy) as sender:
        sent = await sender.send(f"http://receiver.test:{receiver.port}/hook", b"{}", {})
    assert sent.status == 200
    assert receiver.received[0].headers["host"] == f"receiver.test:{receiver.port}"
    [asked] = proxy.requests
    assert asked == {"target": f"127.0.0.1:{receiver.port}", "host": f"127.0.0.1:{receiver.port}"}


async def test_tls_goes_through_it_and_verifies_the_name() -> None:
    async with (
        running_proxy() as proxy,
        Receiver(ssl_context=server_tls()) as receiver,
        through(proxy) as sender,
    ):
        good = await sender.send(f"https://receiver.test:{receiver.port}/", b"{}", {})
        other = await sender.send(f"https://other.test:{receiver.port}/", b"{}", {})
    assert good.status == 200
    assert "certificate" in (other.error or "").lower()


async def test_the_login_goes_to_the_proxy_and_not_to_the_receiver() -> None:
    async with (
        running_proxy() as proxy,
        Receiver() as receiver,
        through(proxy, login="user:p%40ss@") as sender,
    ):
        assert (await sender.send(receiver.url, b"{}", {})).status == 200
    credentials = base64.b64encode(b"user:p@ss").decode()
    assert proxy.requests[0]["proxy-authorization"] == f"Basic {credentials}"
    assert not any("auth" in name for name in receiver.received[0].headers)


async def test_an_address_that_is_not_allowed_is_not_even_asked_for() -> None:
    answers = [("127.0.0.1", "10.0.0.1")]
    async with running_proxy() as proxy, through(proxy, answers=answers) as sender:
        sent = await sender.send("http://receiver.test:8080/", b"{}", {})
    assert sent.refused
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "the proxy answered 403"),
        (b"HTTP/1.1 407 Log in\r\nProxy-Authenticate: Basic\r\n\r\n", "the proxy answered 407"),
        (b"", "is not valid"),
        (b"SSH-2.0-x\r\n\r\n", "the proxy answered"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n ", "is not valid"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, "is not valid"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_a_connection_that_was_not_made(
    refusal: bytes, error: str
) -> None:
    async with running_proxy(refusal) as proxy, through(proxy) as sender:
        sent = await sender.send("http://receiver.test:8080/", b"{}", {})
    assert (sent.status, sent.refused) == (None, False)
    assert error in (sent.error or "")


async def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_proxy() as proxy, Receiver() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with sending() as sender:
            assert (await sender.send(receiver.url, b"{}", {})).status == 200
    assert proxy.requests == []
