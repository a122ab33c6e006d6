"""Calls the service continuously and measures how long it does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

_TIMEOUT_S = 30.0


class Probe:
    """A probe in its own thread, because a test's calls may block its event loop.

    Each call uses a new connection, as those of external callers do.
    """

    def __init__(
        self,
        port: int,
        path: str,
        *,
        period_s: float = 0.1,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self.port = port
        self.statuses: Counter[int | None] = Counter()
        """The number of answers by status since `begin`, None for no answer."""
        self.longest_s = 0.0
        """The longest time since `begin` from a call to the next 2xx."""
        self._request = f"GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n".encode()
        self._period_s = period_s
        self._on_answer = on_answer
        self._asked_at: float | None = None

    def begin(self) -> None:
        self.statuses.clear()
        self.longest_s = 0.0

    @contextmanager
    def asking(self) -> Generator[None]:
        self.begin()
        is_over = threading.Event()
        thread = threading.Thread(target=self._run, args=(is_over,), name="probe")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._note_answered()

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {status}" for status, count in self.statuses.most_common())
        return f"{counts}; no 2xx for {self.longest_s:.1f} s at most"

    def _run(self, is_over: threading.Event) -> None:
        while not is_over.wait(self._period_s):
            self._asked_at = self._asked_at or time.monotonic()
            status = self._ask()
            self.statuses[status] += 1
            if status is not None and 200 <= status < 300:
                self._note_answered()
            self._on_answer()

    def _note_answered(self) -> None:
        if self._asked_at is not None:
            self.longest_s = max(self.longest_s, time.monotonic() - self._asked_at)
            self._asked_at = None

    def _ask(self) -> int | None:
        with (
            suppress(OSError, ValueError, IndexError),
            socket.create_connection(("127.0.0.1", self.port), _TIMEOUT_S) as connection,
        ):
            connection.sendall(self._request)
            return int(connection.recv(64).split()[1])
        return None
