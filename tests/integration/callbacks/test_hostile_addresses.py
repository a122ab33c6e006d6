"""No hostile address is dialled: counted where every connection of this process is begun."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from events.callback_address import AddressRule
from tests.support.callbacks.hostile_addresses import HOSTILE, HOSTILE_ANSWERS
from tests.support.callbacks.receiver import Receiver, sending, server_tls, status

URL = "http://hooks.example.com/"


class Dials:
    """Counts connects by an audit hook of Python, which cannot be removed and so can be idle."""

    def __init__(self) -> None:
        self.addresses: list[Any] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and self.addresses is not None:
            self.addresses.append(arguments[1])

    @contextmanager
    def counted(self) -> Iterator[list[Any]]:
        self.addresses = addresses = []
        try:
            yield addresses
        finally:
            self.addresses = None


@pytest.fixture(scope="module")
def dials() -> Dials:
    return Dials()


@pytest.mark.parametrize(
    ("url", "answers", "reason"),
    [
        *((url, (), reason) for url, reason in HOSTILE),
        *((URL, answers, "resolves to an address that is not") for answers, _ in HOSTILE_ANSWERS),
    ],
)
async def test_a_hostile_address_or_answer_is_refused_by_name_and_not_dialled(
    dials: Dials, url: str, answers: tuple[str, ...], reason: str
) -> None:
    async with sending(AddressRule(), answers=[answers]) as sender:
        with dials.counted() as dialled:
            sent = await sender.send(url, b"{}", {})
    assert sent.refused
    assert re.search(reason, sent.error or "")
    assert dialled == []


async def test_a_name_is_asked_for_at_each_connect_and_what_was_checked_is_dialled(
    dials: Dials,
) -> None:
    """DNS rebinding: there is no second answer between check and dial, also below TLS."""
    answers = [("127.0.0.1",), ("10.0.0.1",), ("127.0.0.1", "::1")]
    close = status(200, headers="Connection: close\r\n")
    tls = server_tls()
    names: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: names.append(name)
    async with Receiver([close], tls) as receiver, sending(answers=answers) as sender:
        url = f"https://receiver.test:{receiver.port}/"
        with dials.counted() as dialled:
            assert (await sender.send(url, b"{}", {})).status == 200
            for _ in answers[1:]:
                sent = await sender.send(url, b"{}", {})
                assert sent.refused
                assert "resolves to an address that is not" in (sent.error or "")
    assert dialled == [("127.0.0.1", receiver.port)]
    assert names == ["receiver.test"]
