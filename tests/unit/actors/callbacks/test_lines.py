from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

from actors.callbacks.breaker import BreakerLimits
from actors.callbacks.hosts import Hosts
from actors.callbacks.lines import Lines
from events.errors import LogUnavailable
from events.memory.queues import MemoryCallbackQueue
from events.queue import AT_ONCE
from events.wire.callback_keys import PARTS
from tests.support.callbacks.crowd import run_in_virtual_time
from tests.support.events import MORNING

LATER = MORNING + timedelta(hours=1)
LIMITS = BreakerLimits(failures=1, open_s=100, longest_open_s=100, jitter=0)


class Queue(MemoryCallbackQueue):
    """Nothing that is parked becomes due. The first look at it fails."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: MORNING)
        self.called: list[str] = []
        self.is_away = True

    async def park(self, key: str, until: object, *, line: str | None = None) -> None:
        if until == AT_ONCE:
            self.called.append(key)
        await super().park(key, LATER, line=line)

    async def in_line(self, parts: Sequence[str] = PARTS) -> AsyncGenerator[dict[str, str]]:
        if self.is_away:
            self.is_away = False
            raise LogUnavailable
        async for page in super().in_line(parts):
            yield page


def new_hosts() -> Hosts:
    clock = asyncio.get_running_loop().time
    return Hosts(at_once=4, most_inside=8, breaker=LIMITS, clock=clock)


async def called_after(seconds: float, queue: Queue, hosts: Hosts) -> list[str]:
    moving = asyncio.create_task(Lines(hosts, queue).run())
    await asyncio.sleep(seconds)
    assert not moving.done()
    moving.cancel()
    return queue.called


def test_after_a_start_each_line_is_moved_by_its_first_and_few_at_a_time() -> None:
    async def run() -> None:
        queue = Queue()
        for turn in range(2):
            for number in range(12):
                await queue.park(f"{turn} of {number}", LATER, line=f"http://{number}.example:80")
        called = await called_after(2.9, queue, new_hosts())
        assert 10 <= len(called) <= 12
        assert all(each.startswith("0 of ") for each in called)
        assert len(set(called)) == len(called)

    run_in_virtual_time(run())


def test_a_line_is_not_moved_while_its_receiver_is_left_alone_or_has_some_on_the_way() -> None:
    async def run() -> None:
        queue, hosts = Queue(), new_hosts()
        for name in ("dead", "called"):
            for number in range(3):
                await queue.park(f"{name} {number}", LATER, line=name)
        async with hosts.turn("dead", "first") as turn:
            turn.answered = False
        assert await called_after(20, queue, hosts) == ["called 0"]
        assert (await called_after(30, queue, hosts))[1:2] == ["called 1"], "the first never came"

    run_in_virtual_time(run())
