"""What is left of a body once its request was answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from serve_app.middleware.unread_bodies import UnreadBodies

CHUNK = b"x" * 1000
START = {"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]}
BODY = {"type": "http.response.body", "body": b"No"}


class Caller:
    """Sends `chunks` of a body of which it has announced more, then nothing, or hangs up."""

    def __init__(self, chunks: int, *, hangs_up: bool = False, is_last: bool = False) -> None:
        self.taken = 0
        self.sent: list[dict[str, Any]] = []
        self.left_at: list[int] = []
        """How many chunks were taken at each message of the answer."""
        self._messages = self._send(chunks, hangs_up=hangs_up, is_last=is_last)

    async def ask(self, app: Any, *, linger_s: float = 60.0, most_bytes: int = 10**6) -> None:
        headers = [(b"content-length", b"100000")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        limits: dict[str, Any] = {"linger_s": linger_s, "most_bytes": most_bytes}
        await UnreadBodies(app, **limits)(scope, self._receive, self._note)

    async def _receive(self) -> dict[str, Any]:
        return await anext(self._messages)

    async def _note(self, message: Any) -> None:
        self.sent.append(message)
        self.left_at.append(self.taken)

    async def _send(
        self, chunks: int, *, hangs_up: bool, is_last: bool
    ) -> AsyncGenerator[dict[str, Any]]:
        for number in range(chunks):
            self.taken += 1
            more = not is_last or number + 1 < chunks
            yield {"type": "http.request", "body": CHUNK, "more_body": more}
        if hangs_up:
            yield {"type": "http.disconnect"}
        await asyncio.Event().wait()


async def refuse(_scope: Any, receive: Any, send: Any) -> None:
    """After the first chunk."""
    await receive()
    await send({**START, "headers": list(START["headers"])})  # type: ignore[call-overload]
    await send(BODY)


def assert_all_is_answered(caller: Caller) -> None:
    start, body, end = caller.sent
    assert (b"connection", b"close") in start["headers"]
    assert body == {**BODY, "more_body": True}
    assert end == {"type": "http.response.body", "body": b""}


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    async with asyncio.timeout(30):
        yield


async def test_the_rest_is_taken_between_the_answer_and_its_end() -> None:
    caller = Caller(50, is_last=True)
    await caller.ask(refuse)
    assert_all_is_answered(caller)
    assert caller.left_at == [1, 1, 50]


async def test_who_hangs_up_is_not_waited_for() -> None:
    caller = Caller(50, hangs_up=True)
    await caller.ask(refuse)
    assert_all_is_answered(caller)
    assert caller.left_at == [1, 1, 50]


async def test_who_stops_sending_is_waited_for_so_long() -> None:
    caller = Caller(50)
    await caller.ask(refuse, linger_s=0.05)
    assert_all_is_answered(caller)
    assert caller.left_at == [1, 1, 50]


async def test_who_does_not_stop_is_cut_off() -> None:
    caller = Caller(50)
    await caller.ask(refuse, most_bytes=20 * len(CHUNK))
    assert_all_is_answered(caller)
    assert caller.left_at == [1, 1, 21]


async def test_a_body_that_was_read_is_nothing_to_wait_for() -> None:
    caller = Caller(1, is_last=True)
    await caller.ask(refuse)
    assert caller.sent == [START, BODY]
