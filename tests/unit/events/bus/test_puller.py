from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.aio.msg import Msg

from events.bus.puller import Puller, stored_at
from events.errors import LogUnavailable


@pytest.mark.parametrize(
    "ack_subject",
    [
        "$JS.ACK.QUEUE.default-3.1.17.4.1763800000123456789.0",
        "$JS.ACK._.hash.QUEUE.default-3.1.17.4.1763800000123456789.0",
        "$JS.ACK.hub.hash.QUEUE.default-3.1.17.4.1763800000123456789.0.random",
    ],
)
def test_an_ack_subject_says_when_its_message_was_stored(ack_subject: str) -> None:
    assert stored_at(ack_subject) == datetime(2025, 11, 22, 8, 26, 40, 123456, tzinfo=UTC)


class FakeClient:
    """Notes what is asked for. A test delivers the messages."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._deliver: Callable[[Msg | None], Awaitable[None]] | None = None
        self._delivered = 0

    def new_inbox(self) -> str:
        return "_INBOX.1"

    async def subscribe(self, subject: str, *, cb: Callable[[Msg | None], Awaitable[None]]) -> None:
        self._deliver = cb

    async def publish(self, subject: str, payload: bytes, *, reply: str) -> None:
        self.requests.append(json.loads(payload))

    async def deliver(self, count: int) -> None:
        assert self._deliver is not None
        for _ in range(count):
            self._delivered += 1
            place = f"1.{self._delivered}.{self._delivered}"
            reply = f"$JS.ACK.JOBS.router.{place}.1763800000123456789.0"
            await self._deliver(Msg(None, "jobs.1.a", reply, b"{}"))

    async def tell(self, status: str) -> None:
        assert self._deliver is not None
        await self._deliver(Msg(None, "_INBOX.1", "", b"", {"Status": status}))


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
async def puller(client: FakeClient) -> Puller:
    puller = Puller(client, "JOBS", "router")  # type: ignore[arg-type]  # a fake of nats-py's
    await puller.open()
    return puller


async def followed(puller: Puller, *, timeout_s: float = 5) -> list[int]:
    return [each.sequence for each in await puller.follow(batch=3, timeout_s=timeout_s)]


async def test_one_request_brings_what_comes_one_after_the_other(
    client: FakeClient, puller: Puller
) -> None:
    assert await followed(puller, timeout_s=0) == []
    await client.deliver(1)
    assert await followed(puller) == [1]
    await client.deliver(1)
    assert await followed(puller) == [2]
    assert [request["batch"] for request in client.requests] == [3]


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_request_that_has_brought_all_or_is_over_is_made_again(
    client: FakeClient, puller: Puller, is_over: bool
) -> None:
    assert await followed(puller, timeout_s=0) == []
    await client.deliver(2 if is_over else 3)
    if is_over:
        await client.tell("408")
    assert await followed(puller) == ([1, 2] if is_over else [1, 2, 3])
    assert len(client.requests) == 1
    assert await followed(puller, timeout_s=0) == []
    assert len(client.requests) == 2


async def test_a_request_that_was_lost_is_told(
    client: FakeClient, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the leader of its consumer, say; whoever leads next knows nothing of it."""
    monkeypatch.setattr("events.bus.puller._STANDING_S", 0.005)
    monkeypatch.setattr("events.bus.puller._LATE_S", 0.005)
    with pytest.raises(LogUnavailable):
        await followed(puller, timeout_s=5)
    assert len(client.requests) == 1, "it may come yet, so no other one is made beside it"


@pytest.mark.parametrize("status", [None, "503", "409"])
async def test_a_consumer_or_a_connection_that_is_gone_is_told_behind_what_came(
    client: FakeClient, puller: Puller, status: str | None
) -> None:
    await client.deliver(2)
    if status is None:
        puller.interrupt()
    else:
        await client.tell(status)
    assert await followed(puller) == [1, 2]
    with pytest.raises(LogUnavailable):
        await followed(puller)
