"""Findings of the checks of `darkroom doctor`, and helpers of the checks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeVar, cast

T = TypeVar("T")

MOST_SKEW_S = 2.0
"""Seconds by which two clocks may differ without a warning."""


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """The part was not checked or does not run now. This need not be an error."""
    WARNING = "warning"
    """The service works, but probably not as intended, or not for long."""
    ERROR = "error"
    """The service does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    level: Level
    what: str
    remedy: str | None = None
    """Instructions by which an operator can fix the problem."""
    hangs: bool = False
    """Whether the check timed out and may have left a thread that still waits for an answer."""

    @property
    def is_wrong(self) -> bool:
        return self.level in {Level.WARNING, Level.ERROR}


class Check(Protocol):
    """A check of one part of the installation.

    `ImageStoreCheck` stores a file and deletes it. The other checks store nothing.
    """

    @property
    def part(self) -> str: ...

    async def run(self) -> list[Finding]:
        """Return the findings in the order in which they are shown."""


async def in_daemon(call: Callable[[], T]) -> T:
    """Run `call` in a daemon thread, which does not prevent an exit if the call hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - the waiting coroutine raises it
            failure = error
        with suppress(RuntimeError):  # A RuntimeError means that the loop has ended.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True).start()
    return await done


def clock_finding(source: str, server_time: datetime, local_time: datetime) -> Finding:
    """Compare the time of `source`, `server_time`, with the time of this machine, `local_time`."""
    ahead_s = (server_time - local_time).total_seconds()
    if abs(ahead_s) <= MOST_SKEW_S:
        return Finding(
            "clock", Level.OK, f"The clock of {source} agrees with that of this machine."
        )
    way = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        "clock",
        Level.WARNING,
        f"The clock of {source} is {abs(ahead_s):.1f} s {way} that of this machine.",
        "Synchronize every machine by NTP (`chronyc tracking` shows the difference).",
    )


def size(count: float) -> str:
    """Return a number of bytes as a text with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
