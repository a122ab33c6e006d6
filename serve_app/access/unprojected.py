"""What one replica stores, until the read model counts it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from events.streams.log_streams import LogPlace

NoteStored = Callable[[int], None]
"""Takes the position of the log at which it was stored."""


class Unprojected:
    """An amount that is in no row yet: what is being stored, and what was stored since the count.

    What was stored counts from here until the checkpoint has passed it, and from the rows then.
    """

    def __init__(self, *, checkpoint: LogPlace = 0) -> None:
        """`checkpoint`: that of the rows as they were last counted."""
        self._checkpoint = checkpoint
        self._stored: list[tuple[int, int]] = []
        """Positions and amounts."""
        self.total = 0
        """What is being stored, and all that was."""

    @contextmanager
    def storing(self, amount: int) -> Generator[NoteStored]:
        """Count `amount` while it is stored; call the given function once it is."""

        def note(position: int) -> None:
            if position > self._checkpoint:  # otherwise the rows already count it
                self._stored.append((position, amount))
                self.total += amount

        self.total += amount
        try:
            yield note
        finally:
            self.total -= amount

    def drop_until(self, checkpoint: LogPlace) -> None:
        """The rows were counted at this checkpoint."""
        self._checkpoint = checkpoint
        passed = sum(amount for position, amount in self._stored if position <= checkpoint)
        self._stored = [each for each in self._stored if each[0] > checkpoint]
        self.total -= passed
