"""Requests of each owner that this replica holds until a job ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from serve_app.refusals import TooManyWaits


class Waits:
    """Each owner has at most `per_owner` waiting requests at the same time; 0 is any number."""

    def __init__(self, per_owner: int) -> None:
        self._per_owner = per_owner
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, owner: str) -> Generator[None]:
        """Raises TooManyWaits."""
        if self._per_owner and self._held[owner] >= self._per_owner:
            raise TooManyWaits(self._per_owner)
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
