"""Asks the service all the while whether it is there, and counts how long it was not."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
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
    """In a thread of its own, for a test that asks Ray holds its event loop meanwhile.

    Each question comes by a connection of its own, as those of callers from outside.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers = Answers()
        """Of the last `asking`."""
        self._silent_since: float | None = None

    @contextmanager
    def asking(self) -> Generator[None]:
        self.answers, is_over = Answers(), threading.Event()
        thread = threading.Thread(target=self._run, args=(is_over,), name="probe")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._note_answered()

    def _run(self, is_over: threading.Event) -> None:
        while not is_over.wait(_PERIOD_S):
            asked_at = time.monotonic()
            status = self._ask()
            self.answers.statuses[status] += 1
            if status is not None and 200 <= status < 300:
                self._note_answered()
            elif self._silent_since is None:
                self._silent_since = asked_at

    def _note_answered(self) -> None:
        if self._silent_since is not None:
            silence_s = time.monotonic() - self._silent_since
            self.answers.longest_s = max(self.answers.longest_s, silence_s)
            self.answers.total_s += silence_s
            self._silent_since = None

    def _ask(self) -> int | None:
        with (
            suppress(OSError, ValueError, IndexError),
            socket.create_connection(("127.0.0.1", self.port), _TIMEOUT_S) as connection,
        ):
            connection.sendall(_REQUEST)
            return int(connection.recv(64).split()[1])
        return None
