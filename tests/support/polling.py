"""Waits for a condition with a deadline, and runs something meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tests.support.patience import FACTOR

T = TypeVar("T")


async def eventually(check: Callable[[], T | Awaitable[T]], *, within_s: float = 180.0) -> T:
    """Return the first true answer of `check`, or raise AssertionError with the last one after the
    time, which is longer on a slow machine.
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


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncGenerator[None]:
    """Run this for as long as the context lasts. It may not end by itself."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})
