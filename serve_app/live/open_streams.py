"""How many streams this replica holds, and how many of them an owner has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from serve_app.refusals import Limited, TooManyStreams


class OpenStreams:
    def __init__(self, most: int, *, per_owner: int) -> None:
        """`per_owner` of 0 is any number."""
        self._most = most
        self._per_owner = per_owner
        self._held: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._held.total()

    @contextmanager
    def hold(self, owner: str) -> Generator[None]:
        """Raises TooManyStreams."""
        if self._per_owner and self._held[owner] >= self._per_owner:
            raise TooManyStreams(Limited.OWNER, self._per_owner)
        if self.count >= self._most:
            raise TooManyStreams("All owners together", self._most)
        self._held[owner] += 1
        try:
            yield
        finally:
            self._held[owner] -= 1
            self._held += Counter()  # without the owners that have none
