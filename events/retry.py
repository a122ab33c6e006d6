"""Repeats calls, with jittered pauses that grow up to a limit."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def pause(at_most_s: float) -> None:
    """Sleep for a random time from half of `at_most_s` up to `at_most_s`.

    The time is random, so that callers do not all repeat a call at the same time.
    """
    await asyncio.sleep(at_most_s * random.uniform(0.5, 1))


async def keep_trying(
    call: Callable[[], Awaitable[T]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    first_pause_s: float = 0.5,
    longest_pause_s: float = 0.5,
    fields: Mapping[str, object] | None = None,
) -> T:
    """Repeat `call` until it does not raise one of the errors `on`, and return its result.

    Pauses double from `first_pause_s` to `longest_pause_s` (exponential backoff with equal jitter).
    After a call that took longer than `longest_pause_s`, pauses start again at `first_pause_s`,
    because the call probably worked for some time before it failed. If `fields` is not None, each
    failure is logged with these fields.
    """
    pause_s = first_pause_s
    while True:
        began = time.monotonic()
        try:
            return await call()
        except on as error:
            if fields is not None:
                cause = {"cause": repr(error.__cause__)} if error.__cause__ else {}
                logger.warning("trying again", extra={**fields, "error": str(error), **cause})
        if time.monotonic() - began > longest_pause_s:
            pause_s = first_pause_s
        await pause(pause_s)
        pause_s = min(2 * pause_s, longest_pause_s)
