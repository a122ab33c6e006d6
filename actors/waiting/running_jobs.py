"""RunningJobs: how many jobs of each owner run, and so which owner may start another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from events.store.records import Endpoint
from settings.keys import OwnerSettings

Name = TypeVar("Name")


class RunningJobs:
    """Counts what this dispatcher started, over all its endpoints, and what others say of theirs.

    A job that a predecessor started is not counted: nothing says whose it is until it comes back.
    """

    def __init__(self, settings: OwnerSettings) -> None:
        self._settings = settings
        self._of_endpoint: Counter[tuple[str, str]] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._elsewhere: Counter[str] = Counter()
        """By owner: what other dispatchers run, as far as that is known."""
        self._listeners: set[Callable[[str], None]] = set()

    def of(self, owner: str, endpoint: Endpoint) -> int:
        """How many jobs the owner runs on one endpoint."""
        return self._of_endpoint[endpoint.id, owner]

    def may_start(self, owner: str) -> bool:
        """Whether the owner may run another job, wherever it is."""
        most = self._settings.max_running_jobs
        return not most or self._of_owner[owner] + self._elsewhere[owner] < most

    def by_owner(self) -> dict[str, int]:
        """How many jobs each owner runs here, now."""
        return dict(self._of_owner)

    def slots_kept_free(self, endpoint: Endpoint) -> int:
        """How many of the endpoint's free slots are for owners who run nothing there."""
        return self._settings.slots_kept_free if endpoint.jobs_per_worker != 1 else 0

    def add(self, owner: str, endpoint: Endpoint) -> None:
        _change(self._of_endpoint, (endpoint.id, owner), 1)
        _change(self._of_owner, owner, 1)

    def remove(self, owner: str, endpoint: Endpoint) -> None:
        _change(self._of_endpoint, (endpoint.id, owner), -1)
        _change(self._of_owner, owner, -1)
        self._tell_end(owner)

    def note_elsewhere(self, owner: str, change: int) -> None:
        """Other dispatchers run so many more of the owner's jobs than they did, or fewer."""
        _change(self._elsewhere, owner, change)
        if change < 0:
            self._tell_end(owner)

    def _tell_end(self, owner: str) -> None:
        for listener in self._listeners:
            listener(owner)

    @contextmanager
    def telling(self, listener: Callable[[str], None]) -> Generator[None]:
        """Call `listener` with its owner whenever jobs have ended, on any endpoint."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)


def _change(counter: Counter[Name], name: Name, by: int) -> None:
    counter[name] += by
    if not counter[name]:
        del counter[name]
