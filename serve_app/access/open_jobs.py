"""How many jobs of a key, and of an owner with all keys together, wait or run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from events.store.records import ApiKey
from events.streams.log_streams import LogPlace
from serve_app.access.unprojected import NoteStored, Unprojected
from serve_app.refusals import Limited, TooManyOpenJobs

if TYPE_CHECKING:
    from events.store.usage import Usage

OPEN_JOBS_PERIOD_S = 1.0
"""How often a replica counts the open jobs of the keys and their owners."""

_Account = tuple[Limited, str]
"""A key by its id, or an owner by name."""


class OpenJobs:
    """Counts the open jobs of each key and owner: those of the read model, and later ones of here.

    The rows are at most one period old. One replica never accepts too many jobs, however late the
    projection is: a job that it stored counts from its own memory until the checkpoint has passed
    the job. Of the other replicas it sees only what is projected. So `n` replicas together accept
    at most `n` times what was free when the projection last moved. While the projection moves, they
    exceed the number by what the others accept in about one second.
    """

    def __init__(
        self,
        usage: Usage,
        *,
        max_of_owner: int,
        period_s: float = OPEN_JOBS_PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_of_owner`: of every owner, 0 is any number; a key's own number is in its limits."""
        self._usage = usage
        self._max_of_owner = max_of_owner
        self._period_s = period_s
        self._clock = clock
        self._counted_until = -float("inf")
        self._counting = asyncio.Lock()
        self._checkpoint: LogPlace = 0
        self._rows: Counter[_Account] = Counter()
        self._unprojected: dict[_Account, Unprojected] = {}

    @asynccontextmanager
    async def place(self, key: ApiKey) -> AsyncGenerator[NoteStored]:
        """Hold a place for one job while it is stored; call the given function once it is.

        Raises TooManyOpenJobs where no place is free, DatabaseUnavailable where the jobs cannot be
        counted.
        """
        limits: dict[_Account, int] = {
            (Limited.KEY, key.id): key.limits.max_open_jobs or 0,
            (Limited.OWNER, key.owner): self._max_of_owner,
        }
        limits = {account: most for account, most in limits.items() if most}
        if limits:
            await self._count()
        for account, most in limits.items():
            if self._rows[account] + self._of(account).total >= most:
                raise TooManyOpenJobs(account[0], most)
        with ExitStack() as stack:
            notes = [stack.enter_context(self._of(account).storing(1)) for account in limits]

            def note_all(position: int) -> None:
                for note in notes:
                    note(position)

            yield note_all

    async def of_owner(self, owner: str) -> int:
        """Raises DatabaseUnavailable."""
        await self._count()
        account = (Limited.OWNER, owner)
        return self._rows[account] + self._of(account).total

    def _of(self, account: _Account) -> Unprojected:
        new = Unprojected(checkpoint=self._checkpoint)
        return self._unprojected.setdefault(account, new)

    async def _count(self) -> None:
        """One query for all keys and owners, once a period."""
        if self._clock() < self._counted_until:
            return
        async with self._counting:
            if self._clock() < self._counted_until:
                return
            self._checkpoint, rows = await self._usage.open_jobs_by_caller()
            self._rows = Counter()
            for (owner, key_id), jobs in rows.items():
                self._rows[Limited.OWNER, owner] += jobs
                if key_id is not None:
                    self._rows[Limited.KEY, key_id] += jobs
            for unprojected in self._unprojected.values():
                unprojected.drop_until(self._checkpoint)
            self._unprojected = {a: each for a, each in self._unprojected.items() if each.total}
            self._counted_until = self._clock() + self._period_s
