"""Given: the jobs that slots were given, as long as they run them."""

from __future__ import annotations

from collections.abc import Collection

from actors.waiting.in_hand import Held


class Given:
    """A job may be there twice: it came again, and its first slot has not said that it ended."""

    def __init__(self) -> None:
        self._by_job: dict[str, set[Held]] = {}

    def __contains__(self, held: Held) -> bool:
        return held in self.of(held.job_id)

    def add(self, held: Held) -> None:
        self._by_job.setdefault(held.job_id, set()).add(held)

    def remove(self, held: Held) -> None:
        """It is there."""
        left = self._by_job[held.job_id]
        left.remove(held)
        if not left:
            del self._by_job[held.job_id]

    def of(self, job_id: str) -> Collection[Held]:
        return self._by_job.get(job_id, ())
