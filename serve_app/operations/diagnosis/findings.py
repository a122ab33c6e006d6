"""What a look at one thing has found, and what to do about it."""

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
"""How far two clocks may be apart: times of events, limits of jobs and schedules come from both."""


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """It was not looked at, or is not there now; nothing says that it is wrong."""
    WARNING = "warning"
    """The service works, yet not as it was probably meant, or not for long."""
    ERROR = "error"
    """The service does not work so."""


@dataclass(frozen=True, slots=True)
class Finding:
    part: str
    level: Level
    what: str
    remedy: str | None = None
    """What to do about it."""
    hangs: bool = False
    """Something did not answer, and a thread may wait for it still."""

    @property
    def is_wrong(self) -> bool:
        return self.level in {Level.WARNING, Level.ERROR}


class Check(Protocol):
    """A look at one part. It changes nothing that stays."""

    @property
    def part(self) -> str: ...

    async def run(self) -> list[Finding]:
        """In the order in which one reads them."""


async def in_daemon(call: Callable[[], T]) -> T:
    """What `call` returns, which may hang, as of files on a mount: nothing waits for its thread."""
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
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True).start()
    return await done


def clock_finding(place: str, told_at: datetime, asked_at: datetime) -> Finding:
    """`told_at`: by the clock of `place`; `asked_at`: by that of this machine."""
    ahead_s = (told_at - asked_at).total_seconds()
    if abs(ahead_s) <= MOST_SKEW_S:
        return Finding("clock", Level.OK, f"The clock of {place} is that of this machine.")
    way = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        "clock",
        Level.WARNING,
        f"The clock of {place} is {abs(ahead_s):.1f} s {way} that of this machine.",
        "Let every machine keep its clock by NTP (chronyc tracking says how far it is off).",
    )


def size(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
