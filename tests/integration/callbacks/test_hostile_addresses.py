"""No hostile address is dialled: counted where every connection of this process is begun."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from settings.callbacks import CallbackSettings
from tests.support.callbacks.hostile_addresses import HOSTILE, HOSTILE_ANSWERS
from tests.support.callbacks.receiver import Receiver, status

LOOPBACK = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])


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


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    sender = Sender(AddressRule(), settings=CallbackSettings())
    yield sender
    await sender.close()


def test_there_are_at_least_sixty() -> None:
    assert len({url for url, _ in HOSTILE}) + len(HOSTILE_ANSWERS) >= 60


async def test_a_dial_is_counted(dials: Dials) -> None:
    sender = Sender(LOOPBACK, settings=CallbackSettings())
    async with Receiver() as receiver:
        with dials.counted() as dialled:
            assert (await sender.send(receiver.url, b"{}", {})).status == 200
    assert dialled == [("127.0.0.1", receiver.port)]
    await sender.close()


@pytest.mark.parametrize(("url", "reason"), HOSTILE)
async def test_a_hostile_address_is_refused_by_name_and_not_dialled(
    sender: Sender, dials: Dials, url: str, reason: str
) -> None:
    with dials.counted() as dialled:
        sent = await sender.send(url, b"{}", {})
    assert sent.refused
    assert re.search(reason, sent.error or "")
    assert dialled == []


@pytest.mark.parametrize(("answers", "refused"), HOSTILE_ANSWERS)
async def test_a_name_with_a_hostile_answer_is_not_dialled(
    dials: Dials, answers: tuple[str, ...], refused: str
) -> None:
    async def resolve(host: str) -> Sequence[str]:
        return answers

    sender = Sender(AddressRule(), settings=CallbackSettings(), resolve=resolve)
    with dials.counted() as dialled:
        sent = await sender.send("http://hooks.example.com/", b"{}", {})
    assert sent.refused
    assert f"resolves to {ip_address(refused)}" in (sent.error or "")
    assert dialled == []
    await sender.close()


async def test_a_name_that_changes_its_answer_after_the_check_is_not_dialled(dials: Dials) -> None:
    """DNS rebinding: what was checked at acceptance does not count at the connect."""
    answers = iter([["8.8.8.8"], ["127.0.0.1"], ["8.8.8.8", "::1"]])

    async def resolve(host: str) -> Sequence[str]:
        return next(answers)

    rule = AddressRule()
    sender = Sender(rule, settings=CallbackSettings(), resolve=resolve)
    url = "http://hooks.example.com/"
    accepted = await rule.addresses(rule.check_url(url), resolve)
    assert [str(each) for each in accepted] == ["8.8.8.8"]
    with dials.counted() as dialled:
        for hostile in ("127.0.0.1", "::1"):
            sent = await sender.send(url, b"{}", {})
            assert sent.refused
            assert f"resolves to {hostile}" in (sent.error or "")
    assert dialled == []
    await sender.close()


async def test_a_name_is_asked_for_once_and_what_was_checked_is_dialled(dials: Dials) -> None:
    """Between check and dial there is no second answer that could differ."""
    asked: list[str] = []

    async def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    sender = Sender(LOOPBACK, settings=CallbackSettings(), resolve=resolve)
    async with Receiver([status(200)]) as receiver:
        with dials.counted() as dialled:
            sent = await sender.send(f"http://receiver.test:{receiver.port}/", b"{}", {})
    assert sent.status == 200
    assert asked == ["receiver.test"]
    assert dialled == [("127.0.0.1", receiver.port)]
    await sender.close()
