"""What one replica stores, until the read model counts it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

NoteStored = Callable[[int], None]
"""Takes the position of the log at which it was stored."""


class Unprojected:
    """An amount that is in no row yet: what is being stored, and what was stored since the count.

    What was stored counts from here until the checkpoint has passed it, and from the rows then.
    """

    def __init__(self, *, checkpoint: int = 0) -> None:
        """`checkpoint`: that of the rows as they were last counted."""
        self._checkpoint = checkpoint
        self._storing = 0
        self._stored: list[tuple[int, int]] = []
        """Positions and amounts."""

    @property
    def total(self) -> int:
        return self._storing + sum(amount for _, amount in self._stored)

    @contextmanager
    def storing(self, amount: int) -> Generator[NoteStored]:
        """Count `amount` while it is stored; call the given function once it is."""

        def note(position: int) -> None:
            if position > self._checkpoint:  # otherwise the rows already count it
                self._stored.append((position, amount))

        self._storing += amount
        try:
            yield note
        finally:
            self._storing -= amount

    def drop_until(self, checkpoint: int) -> None:
        """The rows were counted at this checkpoint."""
        self._checkpoint = checkpoint
        self._stored = [each for each in self._stored if each[0] > checkpoint]
