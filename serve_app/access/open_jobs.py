"""How many jobs of a key wait or run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from events.store.records import ApiKey
from serve_app.refusals import TooManyOpenJobs

if TYPE_CHECKING:
    from events.store.read_model import ReadModel

OPEN_JOBS_PERIOD_S = 1.0
"""How often a replica counts the open jobs of the keys."""

NoteStored = Callable[[int], None]
"""Takes the position of the log at which the job was stored."""


class OpenJobs:
    """Counts the open jobs of each key: those of the read model, and those stored after them here.

    The rows are at most one period old. One replica never accepts too many jobs, however late the
    projection is: a job that it stored counts from its own memory until the checkpoint has passed
    the job. Of the other replicas it sees only what is projected. So `n` replicas together accept
    at most `n` times what was free for the key when the projection last moved. While the projection
    moves, they exceed the number by what the others accept in about one second.
    """

    def __init__(
        self,
        read_model: ReadModel,
        *,
        period_s: float = OPEN_JOBS_PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_model = read_model
        self._period_s = period_s
        self._clock = clock
        self._counted_until = -float("inf")
        self._counting = asyncio.Lock()
        self._checkpoint = 0
        self._rows: dict[str, int] = {}
        self._storing: Counter[str] = Counter()
        self._stored: defaultdict[str, list[int]] = defaultdict(list)

    @asynccontextmanager
    async def place(self, key: ApiKey) -> AsyncGenerator[NoteStored]:
        """Hold a place for one job while it is stored; call the given function once it is.

        Raises TooManyOpenJobs where no place is free, DatabaseUnavailable where the jobs cannot be
        counted.
        """
        most = key.limits.max_open_jobs
        if not most:
            yield lambda _position: None
            return
        await self._count()
        if self._rows.get(key.id, 0) + self._storing[key.id] + len(self._stored[key.id]) >= most:
            raise TooManyOpenJobs(most)
        self._storing[key.id] += 1
        try:
            yield partial(self._note, key.id)
        finally:
            self._storing[key.id] -= 1

    def _note(self, key_id: str, position: int) -> None:
        if position > self._checkpoint:  # otherwise the rows already count it
            self._stored[key_id].append(position)

    async def _count(self) -> None:
        """One query for all keys, once a period."""
        async with self._counting:
            if self._clock() < self._counted_until:
                return
            self._checkpoint, self._rows = await self._read_model.open_jobs_by_key()
            for key_id, positions in list(self._stored.items()):
                not_yet_counted = [
                    position for position in positions if position > self._checkpoint
                ]
                if not_yet_counted:
                    self._stored[key_id] = not_yet_counted
                else:
                    del self._stored[key_id]
            self._counted_until = self._clock() + self._period_s
