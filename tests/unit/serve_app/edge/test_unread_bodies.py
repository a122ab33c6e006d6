"""What is left of a body once its request was answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from serve_app.middleware import UnreadBodies
from tests.support.patience import FACTOR

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

    async def ask(self, app: UnreadBodies) -> None:
        headers = [(b"content-length", b"100000")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        await app(scope, self._receive, self._note)

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


def refusing(app: Any = refuse, **limits: Any) -> UnreadBodies:
    return UnreadBodies(app, **{"linger_s": 60.0} | limits)


def assert_all_is_answered(caller: Caller) -> None:
    start, body, end = caller.sent
    assert (b"connection", b"close") in start["headers"]
    assert body == {**BODY, "more_body": True}
    assert end == {"type": "http.response.body", "body": b""}


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    async with asyncio.timeout(30 * FACTOR):
        yield


@pytest.mark.parametrize(
    ("sends", "limits", "taken"),
    [
        ({"is_last": True}, {}, 50),
        ({"hangs_up": True}, {}, 50),
        ({}, {"linger_s": 0.05}, 50),
        ({}, {"max_bytes": 20 * len(CHUNK)}, 21),
    ],
    ids=["sends all", "hangs up", "stops sending", "sends too much"],
)
async def test_the_rest_is_taken_between_the_answer_and_its_end(
    sends: dict[str, bool], limits: dict[str, Any], taken: int
) -> None:
    caller = Caller(50, **sends)
    await caller.ask(refusing(**limits))
    assert_all_is_answered(caller)
    assert caller.left_at == [1, 1, taken]


async def test_a_body_that_was_read_is_nothing_to_wait_for() -> None:
    caller = Caller(1, is_last=True)
    await caller.ask(refusing())
    assert caller.sent == [START, BODY]


async def test_so_many_are_taken_at_the_same_time() -> None:
    app = refusing(max_bodies=2)
    waiting = [asyncio.create_task(Caller(5).ask(app)) for _ in range(2)]
    await asyncio.sleep(0)
    for _ in range(3):
        caller = Caller(5)
        await caller.ask(app)
        assert caller.sent[1:] == [BODY]
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    caller = Caller(5, hangs_up=True)
    await caller.ask(app)
    assert_all_is_answered(caller)


@pytest.mark.parametrize("bodies", [[b"x" * 40_000], [b"a part", b"", b"the end"]])
async def test_a_large_answer_and_one_in_parts_end_at_once(bodies: list[bytes]) -> None:
    async def answer(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({**START, "headers": []})
        for number, body in enumerate(bodies, 1):
            more = number < len(bodies)
            await send({"type": "http.response.body", "body": body, "more_body": more})

    caller = Caller(50)
    await caller.ask(refusing(answer))
    assert [message["body"] for message in caller.sent[1:]] == bodies
    assert caller.taken == 1


async def test_the_application_does_not_wait_for_the_rest() -> None:
    has_ended = asyncio.Event()

    async def answer(*args: Any) -> None:
        await refuse(*args)
        has_ended.set()

    asking = asyncio.create_task(Caller(5).ask(refusing(answer)))
    await has_ended.wait()
    assert not asking.done()
    asking.cancel()
    await asyncio.wait({asking})
