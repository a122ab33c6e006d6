"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Returns `now` in seconds, as `time.monotonic` does."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
