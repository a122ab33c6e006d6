"""Checks of bodies and of files that may take long: beside the event loop, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from engine.patient_reads import WouldWait, without_waiting
from serve_app.access.turns import Turns

T = TypeVar("T")

QUICK_BYTES = 4096
"""A body of so many bytes is parsed in much less than a millisecond."""


class Checks:
    """Runs functions in threads of its own. One of several threads is kept for other owners."""

    def __init__(self, most: int, *, timeout_s: float) -> None:
        """`timeout_s` is how long a thread is waited for."""
        self._turns = Turns(most, per_owner=max(1, most - 1), timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="check")

    async def run(self, owner: str, function: Callable[..., T], *args: object, is_quick: bool) -> T:
        """What the function returns or raises. A quick one runs at once, unless it has to wait for
        the models folder. Raises NoTurn.
        """
        if is_quick:
            try:
                with without_waiting():
                    return function(*args)
            except WouldWait:
                pass
        async with self._turns.take(owner):
            loop = asyncio.get_running_loop()
            done = loop.run_in_executor(self._threads, partial(function, *args))
            try:
                return await asyncio.shield(done)
            finally:
                # A thread cannot be stopped. Where the caller hangs up, the turn ends with it.
                await asyncio.wait([done])

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
