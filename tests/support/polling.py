"""Wait for what must come, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(check: Callable[[], T | Awaitable[T]], *, within_s: float = 60.0) -> T:
    """The first true answer of `check`; an AssertionError with the last one when time is up."""
    give_up_at = time.monotonic() + within_s
    while True:
        answer = check()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < give_up_at, f"not within {within_s} s: {answer!r}"
        await asyncio.sleep(0.05)
