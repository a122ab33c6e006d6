"""Limits of an owner: open jobs, bytes of log and results, and waiting requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from events.store.records import ApiKey, KeptBytes
from serve_app.refusals import (
    Limited,
    TooManyLogBytes,
    TooManyOpenJobs,
    TooManyResultBytes,
    TooManyWaits,
)
from settings.keys import OwnerSettings

if TYPE_CHECKING:
    from events.store.read_model import Usage

NoteStored = Callable[[int], None]
"""Takes the offset in the log at which the event was stored."""
OPEN_JOBS_PERIOD_S = 1.0
"""The shortest time in seconds between two counts of the open jobs of all keys and owners, per
replica.
"""
KEPT_BYTES_PERIOD_S = 1.0
"""The shortest time in seconds between two counts of the bytes of one owner, per replica."""
_COUNTS_IN_TURN = 50
"""The pause after a count of an owner's bytes is at least this many times as long as the count, so
that slow counts do not overload the database.
"""
_EVENT_BYTES = 1024
"""The approximate size of a `Submitted` event in the log without the request body, in bytes."""


class Unprojected:
    """Sums the amounts that the last count of the read model does not include.

    These are amounts that are being stored, and amounts that were stored after the offset of the
    last count.
    """

    def __init__(self, *, offset: int = 0) -> None:
        """`offset` is the projection's offset at the last count of the read model."""
        self._offset = offset
        self._stored: list[tuple[int, int]] = []
        """Pairs of a log offset and an amount."""
        self.total = 0
        """The sum of all amounts that the last count does not include."""

    @contextmanager
    def storing(self, amount: int) -> Generator[NoteStored]:
        """Count `amount` until the context ends. Call the yielded function after the append."""

        def note(position: int) -> None:
            # The last count does not include an amount that was stored after its offset.
            if position > self._offset:
                self._stored.append((position, amount))
                self.total += amount

        self.total += amount
        try:
            yield note
        finally:
            self.total -= amount

    def drop_until(self, offset: int) -> None:
        """Drop the amounts up to `offset`. A new count of the read model includes these amounts."""
        self._offset = offset
        passed = sum(amount for position, amount in self._stored if position <= offset)
        self._stored = [each for each in self._stored if each[0] > offset]
        self.total -= passed


_Limit = tuple[Limited, str]
"""The kind of a limited object, and the id of the key or the name of the owner."""


class OpenJobs:
    """Counts the open jobs of each key and owner in the read model, and later jobs of this replica.

    The count of the read model is at most `period_s` old. The jobs that this replica has stored are
    added until a count includes them. Therefore one replica alone never exceeds a limit.

    Jobs of other replicas are counted only after the projection has processed them. While the
    projection runs, a limit is exceeded by at most the jobs that the other replicas accept in about
    one second. While the projection is stopped, each replica can accept the number of jobs that was
    free when the projection stopped.
    """

    def __init__(
        self,
        usage: Usage,
        *,
        max_of_owner: int,
        period_s: float = OPEN_JOBS_PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_of_owner` is the limit of each owner; 0 means no limit. A key has its own limit."""
        self._usage = usage
        self.max_of_owner = max_of_owner
        self._period_s = period_s
        self._clock = clock
        self._counted_until = -float("inf")
        self._counting = asyncio.Lock()
        self._offset: int = 0
        self._rows: Counter[_Limit] = Counter()
        self._unprojected: dict[_Limit, Unprojected] = {}

    @asynccontextmanager
    async def place(self, key: ApiKey) -> AsyncGenerator[NoteStored]:
        """Reserve one open job until the context ends. Call the yielded function after the append.

        Raises TooManyOpenJobs if a limit is reached, and DatabaseUnavailable if the jobs cannot be
        counted.
        """
        limits: dict[_Limit, int] = {
            (Limited.KEY, key.id): key.limits.max_open_jobs or 0,
            (Limited.OWNER, key.owner): self.max_of_owner,
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
        """Return the number of the owner's open jobs. Raises DatabaseUnavailable."""
        await self._count()
        account = (Limited.OWNER, owner)
        return self._rows[account] + self._of(account).total

    def _of(self, account: _Limit) -> Unprojected:
        new = Unprojected(offset=self._offset)
        return self._unprojected.setdefault(account, new)

    async def _count(self) -> None:
        """Count the open jobs of all keys and owners, with at most one query per period."""
        if self._clock() < self._counted_until:
            return
        async with self._counting:
            if self._clock() < self._counted_until:
                return
            self._offset, rows = await self._usage.open_jobs_by_caller()
            self._rows = Counter()
            for (owner, key_id), jobs in rows.items():
                self._rows[Limited.OWNER, owner] += jobs
                if key_id is not None:
                    self._rows[Limited.KEY, key_id] += jobs
            for unprojected in self._unprojected.values():
                unprojected.drop_until(self._offset)
            self._unprojected = {a: each for a, each in self._unprojected.items() if each.total}
            self._counted_until = self._clock() + self._period_s


@dataclass(slots=True)
class _Account:
    """The cached usage of one owner."""

    kept: KeptBytes = field(default_factory=KeptBytes)
    counted_until: float = -float("inf")
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    log_bytes: Unprojected = field(default_factory=Unprojected)
    result_bytes: Unprojected = field(default_factory=Unprojected)

    @property
    def total(self) -> KeptBytes:
        return KeptBytes(
            log_bytes=self.kept.log_bytes + self.log_bytes.total,
            result_bytes=self.kept.result_bytes + self.result_bytes.total,
            upload_bytes=self.kept.upload_bytes,
        )


class OwnedBytes:
    """Counts the bytes of each owner in the read model, and the later jobs of this replica.

    Jobs of other replicas are counted late, as in `OpenJobs`. An open job counts with the largest
    size that its results may have. New uploads are included at the next count.
    """

    def __init__(
        self,
        usage: Usage,
        settings: OwnerSettings,
        *,
        period_s: float = KEPT_BYTES_PERIOD_S,
        max_owners: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self.limits = settings
        self._period_s = period_s
        self._max_owners = max_owners
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """Accounts by owner, the least recently used first. If there are more than `max_owners`,
        the first account is removed.
        """

    async def kept(self, owner: str) -> KeptBytes:
        """Return the bytes that the owner keeps. Raises DatabaseUnavailable."""
        return (await self._counted(owner)).total

    @asynccontextmanager
    async def room(
        self, owner: str, body_bytes: int, *, result_bytes: int = 0
    ) -> AsyncGenerator[NoteStored]:
        """Reserve space for a job of `body_bytes` and `result_bytes` until the context ends.

        Call the yielded function after the append. Raises TooManyLogBytes, TooManyResultBytes,
        DatabaseUnavailable.
        """
        max_log, max_results = self.limits.max_log_bytes, self.limits.max_result_bytes
        if not (max_log or max_results):
            yield lambda _position: None
            return
        size_bytes = body_bytes + _EVENT_BYTES
        account = await self._counted(owner)
        kept = account.total
        if max_log and kept.log_bytes + size_bytes > max_log:
            raise TooManyLogBytes(kept.log_bytes, max_log)
        if max_results and kept.result_bytes >= max_results:
            raise TooManyResultBytes(kept.result_bytes, max_results)
        with (
            account.log_bytes.storing(size_bytes) as note_log,
            account.result_bytes.storing(result_bytes) as note_results,
        ):

            def stored(position: int) -> None:
                note_log(position)
                note_results(position)

            yield stored

    async def _counted(self, owner: str) -> _Account:
        """Return the usage of an owner, with at most one query per period."""
        account = self._accounts.setdefault(owner, _Account())
        self._accounts.move_to_end(owner)
        if len(self._accounts) > self._max_owners:
            self._accounts.popitem(last=False)
        if self._clock() < account.counted_until:
            return account
        async with account.counting:
            began = self._clock()
            if began >= account.counted_until:
                offset, account.kept = await self._usage.kept_bytes(owner)
                account.log_bytes.drop_until(offset)
                account.result_bytes.drop_until(offset)
                ended = self._clock()
                pause_s = max(self._period_s, _COUNTS_IN_TURN * (ended - began))
                account.counted_until = ended + pause_s
        return account


class Waits:
    """Limits the waiting requests of each owner to `per_owner` at a time; 0 means no limit."""

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
