"""Wait for what must come, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.patience import FACTOR

T = TypeVar("T")


async def eventually(check: Callable[[], T | Awaitable[T]], *, within_s: float = 180.0) -> T:
    """The first true answer of `check`; an AssertionError with the last one when time is up.

    A slow machine has more time.
    """
    give_up_at, pause_s = time.monotonic() + FACTOR * within_s, 0.001
    while True:
        answer = check()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < give_up_at, f"not within {within_s} s: {answer!r}"
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.05)
