"""Asks the service all the while whether it is there, and counts how long it was not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

_PERIOD_S = 0.1
_TIMEOUT_S = 5.0
_REQUEST = b"GET /health/ready HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


@dataclass(slots=True)
class Answers:
    """How often each status was answered, None for no answer at all; times in seconds."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    longest_s: float = 0.0
    """The longest time without a 2xx."""
    total_s: float = 0.0
    """All times without one."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {status}" for status, count in self.statuses.most_common())
        return f"{counts}; no 2xx for {self.longest_s:.1f} s at most, {self.total_s:.1f} s in all"


class Probe:
    """Each question comes by a connection of its own, as those of callers from outside."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._answers = Answers()
        self._silent_since: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            asked_at = time.monotonic()
            self._note(await self._ask(), asked_at)
            await asyncio.sleep(_PERIOD_S)

    def taken(self) -> Answers:
        """Those since the last call."""
        if self._silent_since is not None:
            self._end_silence()
        answers, self._answers = self._answers, Answers()
        return answers

    def _note(self, status: int | None, asked_at: float) -> None:
        self._answers.statuses[status] += 1
        is_there = status is not None and 200 <= status < 300
        if not is_there and self._silent_since is None:
            self._silent_since = asked_at
        elif is_there and self._silent_since is not None:
            self._end_silence()

    def _end_silence(self) -> None:
        assert self._silent_since is not None
        silence_s = time.monotonic() - self._silent_since
        self._answers.longest_s = max(self._answers.longest_s, silence_s)
        self._answers.total_s += silence_s
        self._silent_since = None

    async def _ask(self) -> int | None:
        with suppress(OSError, TimeoutError, ValueError, IndexError):
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    writer.write(_REQUEST)
                    return int((await reader.readline()).split()[1])
                finally:
                    writer.transport.abort()
        return None
