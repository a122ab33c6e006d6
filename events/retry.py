"""Trying again, with pauses that grow up to a cap and are never the same for two callers."""

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
    """Sleep for half of `at_most_s` to all of it, so that not everybody comes back at once."""
    await asyncio.sleep(at_most_s * random.uniform(0.5, 1))


async def keep_trying(
    call: Callable[[], Awaitable[T]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    first_pause_s: float = 0.5,
    longest_pause_s: float = 0.5,
    fields: Mapping[str, object] | None = None,
) -> T:
    """The answer of `call`, which is called again for as long as it raises one of `on`.

    Each pause is up to twice as long as the one before, up to `longest_pause_s` (exponential
    backoff with equal jitter). A call that lasted longer than that begins with short pauses again:
    it worked for a while. `fields`: what a log line says of each failure; None logs nothing.
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
