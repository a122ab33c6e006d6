"""Runs slow checks in a few threads, and shares limited resources between owners."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from engine.interface import without_waiting
from serve_app.refusals import NoTurn
from settings.constant import constant

_WAIT_S = constant("BODY_WAIT_S", 10.0)
"""Seconds that a caller waits for a turn before the request gets 503."""
_BODY_CHECKS = constant("BODY_CHECKS", 2)
"""The number of threads that check large request bodies. One owner cannot use all threads."""


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: str
    size: int
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class FairSemaphore:
    """Limits the total amount in use at a time. Other callers wait in order of arrival.

    A caller that waits because of its owner's share does not block callers of other owners.
    """

    def __init__(self, total: int, *, per_owner: int, timeout_s: float | None = None) -> None:
        """`per_owner` is the largest amount that one owner may use.

        `timeout_s` is the longest wait of a caller; None means the default.
        """
        self._free = total
        self._per_owner = per_owner
        self._timeout_s = _WAIT_S if timeout_s is None else timeout_s
        self._taken: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def take(self, owner: str, size: int = 1) -> AsyncGenerator[None]:
        """Reserve `size`, at most the share of one owner, until the context ends.

        Raises NoTurn if too little becomes free in time.
        """
        turn = _Waiter(owner, min(size, self._per_owner))
        self._waiting.append(turn)
        self._begin()
        try:
            await self._wait(turn)
            yield
        finally:
            self._end(turn)

    async def _wait(self, turn: _Waiter) -> None:
        if turn.begun.is_set():
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn.begun.wait()
        except TimeoutError as error:
            raise NoTurn from error

    def _begin(self) -> None:
        """Begin waiting turns in order, until too little is free for a turn.

        Turns whose owner has used its share are skipped.
        """
        for turn in list(self._waiting):
            if self._taken[turn.owner] + turn.size > self._per_owner:
                continue
            if turn.size > self._free:
                return
            self._waiting.remove(turn)
            self._free -= turn.size
            self._taken[turn.owner] += turn.size
            turn.begun.set()

    def _end(self, turn: _Waiter) -> None:
        if turn.begun.is_set():
            self._free += turn.size
            self._taken[turn.owner] -= turn.size
            self._taken += Counter()  # This removes owners that use nothing.
        else:
            self._waiting.remove(turn)
        self._begin()


T = TypeVar("T")

QUICK_BYTES = 4096
"""The largest body that is checked without a thread. Such a body is parsed in less than a
millisecond.
"""


class Checks:
    """Runs functions in its own thread pool.

    If there are several threads, one owner cannot occupy all of them.
    """

    def __init__(self, most: int, *, timeout_s: float | None = None) -> None:
        """`most` is the number of threads. `timeout_s` is the longest wait for a free thread."""
        self._turns = FairSemaphore(most, per_owner=max(1, most - 1), timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="check")

    @classmethod
    def of_bodies(cls) -> Checks:
        """Create the thread pool that checks request bodies."""
        return cls(_BODY_CHECKS)

    async def run(self, owner: str, function: Callable[..., T], *args: object, is_quick: bool) -> T:
        """Run `function(*args)` and return its result or raise its error.

        A quick function runs in the calling thread, unless it would have to wait for the models
        folder. Raises NoTurn if no thread becomes free in time.
        """
        if is_quick:
            try:
                with without_waiting():
                    return function(*args)
            except BlockingIOError:
                pass
        async with self._turns.take(owner):
            loop = asyncio.get_running_loop()
            done = loop.run_in_executor(self._threads, partial(function, *args))
            try:
                return await asyncio.shield(done)
            finally:
                # A thread cannot be stopped, so the turn lasts until the thread ends.
                await asyncio.wait([done])

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
