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
from serve_app.refusals import Busy
from settings.constant import constant

_WAIT_S = constant("BODY_WAIT_S", 10.0)
"""Seconds that a request waits for its turn before it is refused with 503."""
_BODY_CHECKS = constant("BODY_CHECKS", 2)
"""The number of threads that check large request bodies. One owner cannot use all threads."""


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: str
    size: int
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class FairSemaphore:
    """A semaphore of `total` units, such as bytes or threads. Callers wait in order of arrival.

    A caller whose owner already uses `per_owner` units does not block callers of other owners.
    """

    def __init__(self, total: int, *, per_owner: int, timeout_s: float | None = None) -> None:
        """A caller waits for at most `timeout_s` seconds; None means `_WAIT_S`."""
        self._free = total
        self._per_owner = per_owner
        self._timeout_s = _WAIT_S if timeout_s is None else timeout_s
        self._used: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def acquire(self, owner: str, size: int = 1) -> AsyncGenerator[None]:
        """Reserve `size` units, but at most `per_owner`, until the context ends. Raises Busy."""
        turn = _Waiter(owner, min(size, self._per_owner))
        self._waiting.append(turn)
        self._begin_turns()
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
            raise Busy from error

    def _begin_turns(self) -> None:
        """Begin waiting turns in order, up to the first turn for which too few units are free.

        Turns whose owner would exceed its limit are skipped.
        """
        for turn in list(self._waiting):
            if self._used[turn.owner] + turn.size > self._per_owner:
                continue
            if turn.size > self._free:
                return
            self._waiting.remove(turn)
            self._free -= turn.size
            self._used[turn.owner] += turn.size
            turn.begun.set()

    def _end(self, turn: _Waiter) -> None:
        if turn.begun.is_set():
            self._free += turn.size
            self._used[turn.owner] -= turn.size
            self._used += Counter()  # This removes owners that use no units.
        else:
            self._waiting.remove(turn)
        self._begin_turns()


T = TypeVar("T")

QUICK_BYTES = 4096
"""The largest body that is checked without a thread. It is parsed in less than a millisecond."""


async def ended(call: asyncio.Future[T]) -> T:
    """Return the result of a call in a thread. If the caller is cancelled, wait for the end of the
    call, too, because a thread cannot be stopped, and the caller's turn must last until then.
    """
    try:
        return await asyncio.shield(call)
    finally:
        await asyncio.wait([call])


class FairThreads:
    """Runs functions in a thread pool. If it has several threads, one owner cannot use them all."""

    def __init__(self, most: int, *, timeout_s: float | None = None) -> None:
        """`most` is the number of threads. `timeout_s` is the longest wait for a free thread."""
        self._turns = FairSemaphore(most, per_owner=max(1, most - 1), timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="check")

    @classmethod
    def of_bodies(cls) -> FairThreads:
        """Create the thread pool that checks request bodies."""
        return cls(_BODY_CHECKS)

    async def run(self, owner: str, function: Callable[..., T], *args: object, is_quick: bool) -> T:
        """Run `function(*args)` and return its result or raise its error.

        A quick function runs in the calling thread, unless it would have to wait for the models
        folder. Raises Busy if no thread becomes free in time.
        """
        if is_quick:
            try:
                with without_waiting():
                    return function(*args)
            except BlockingIOError:
                pass
        async with self._turns.acquire(owner):
            loop = asyncio.get_running_loop()
            return await ended(loop.run_in_executor(self._threads, partial(function, *args)))

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
