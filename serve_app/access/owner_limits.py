"""OwnerLimits: the open jobs and the kept bytes of owners. Waits: their waiting requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from events.store.records import ApiKey, OwnerBytes
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

OPEN_JOBS_PERIOD_S = 1.0
"""The shortest time in seconds between two counts of the open jobs of all keys and owners, per
replica.
"""
_KEPT_BYTES_PERIOD_S = 1.0
"""The shortest time in seconds between two counts of the bytes of one owner, per replica."""
_COUNTS_IN_TURN = 50
"""The pause after a count of an owner's bytes is at least this many times as long as the count, so
that slow counts do not overload the database.
"""
_EVENT_BYTES = 1024
"""The approximate size in bytes of the envelope and the later events of a job in the log."""


class Unprojected:
    """Sums the jobs or bytes that the last count of the read model does not include.

    An amount is added before its event is appended, and dropped when a count includes the event.
    """

    def __init__(self, *, offset: int = 0) -> None:
        """`offset` is the log offset up to which the last count includes events."""
        self._offset = offset
        self._stored: list[tuple[int, int]] = []
        """Pairs of a log offset and an amount."""
        self.total = 0

    def settle(self, amount: int, position: int | None) -> None:
        """Stop to count an amount, unless it was stored after the offset of the last count.

        `position` is its offset in the log; None if it was not stored.
        """
        if position is not None and position > self._offset:
            self._stored.append((position, amount))
        else:
            self.total -= amount

    def drop_until(self, offset: int) -> None:
        """Drop the amounts of events up to `offset`, because a new count includes these events."""
        self._offset = offset
        passed = sum(amount for position, amount in self._stored if position <= offset)
        self._stored = [each for each in self._stored if each[0] > offset]
        self.total -= passed


class Reservation:
    """The amounts of a job that is being stored. They count in the limits of its owner."""

    def __init__(self) -> None:
        self._amounts: list[tuple[Unprojected, int]] = []
        self._position: int | None = None

    def add(self, counted: Unprojected, amount: int) -> None:
        counted.total += amount
        self._amounts.append((counted, amount))

    def keep_until_counted(self, position: int) -> None:
        """Keep the amounts until a count of the read model includes this offset of the log."""
        self._position = position

    def end(self) -> None:
        for counted, amount in self._amounts:
            counted.settle(amount, self._position)


_Limit = tuple[Limited, str]
"""A key with its id, or an owner with its name."""


@dataclass(slots=True)
class _Account:
    """The bytes of one owner."""

    kept: OwnerBytes = field(default_factory=OwnerBytes)
    counted_until: float = -float("inf")
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    log_bytes: Unprojected = field(default_factory=Unprojected)
    result_bytes: Unprojected = field(default_factory=Unprojected)

    @property
    def total(self) -> OwnerBytes:
        return OwnerBytes(
            log_bytes=self.kept.log_bytes + self.log_bytes.total,
            result_bytes=self.kept.result_bytes + self.result_bytes.total,
            upload_bytes=self.kept.upload_bytes,
        )


class OwnerLimits:
    """Limits the open jobs of each key and owner, and the bytes that each owner keeps.

    The counts of the read model are cached for a short time. The jobs that this replica has stored
    are added until a count includes them. Therefore one replica alone never exceeds a limit of open
    jobs. An open job counts with the largest size that its results may have. New uploads are
    included at the next count.

    Jobs of other replicas are counted only after the projection has processed them. While the
    projection runs, a limit is exceeded by at most the jobs that the other replicas accept in about
    one second. While the projection is stopped, each replica can accept the number of jobs that was
    free when the projection stopped.
    """

    def __init__(
        self,
        usage: Usage,
        settings: OwnerSettings,
        *,
        open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
        max_owners: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self.settings = settings
        """The limits of each owner; 0 means no limit. A key has its own limit of open jobs."""
        self._open_jobs_period_s = open_jobs_period_s
        self._max_owners = max_owners
        self._clock = clock
        self._counted_until = -float("inf")
        self._counting = asyncio.Lock()
        self._offset: int = 0
        self._rows: Counter[_Limit] = Counter()
        """The number of open jobs of each key and owner at the last count."""
        self._unprojected: dict[_Limit, Unprojected] = {}
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """At most `max_owners` accounts by owner, the least recently used account first."""

    @asynccontextmanager
    async def reserve(
        self, key: ApiKey, *, log_bytes: int, result_bytes: int
    ) -> AsyncGenerator[Reservation]:
        """Reserve one open job and its bytes until the context ends.

        Call `keep_until_counted` of the reservation after the append. Raises TooManyOpenJobs,
        TooManyLogBytes, TooManyResultBytes, and DatabaseUnavailable if the counts cannot be read.
        """
        reservation = Reservation()
        try:
            await self._reserve_open_job(reservation, key)
            await self._reserve_bytes(
                reservation, key.owner, log_bytes=log_bytes, result_bytes=result_bytes
            )
            yield reservation
        finally:
            reservation.end()

    async def _reserve_open_job(self, reservation: Reservation, key: ApiKey) -> None:
        limits: dict[_Limit, int] = {
            (Limited.KEY, key.id): key.limits.max_open_jobs or 0,
            (Limited.OWNER, key.owner): self.settings.max_open_jobs,
        }
        limits = {account: most for account, most in limits.items() if most}
        if limits:
            await self._count_open_jobs()
        for account, most in limits.items():
            if self._rows[account] + self._of(account).total >= most:
                raise TooManyOpenJobs(account[0], most)
        for account in limits:
            reservation.add(self._of(account), 1)

    async def _reserve_bytes(
        self, reservation: Reservation, owner: str, *, log_bytes: int, result_bytes: int
    ) -> None:
        max_log, max_results = self.settings.max_log_bytes, self.settings.max_result_bytes
        if not (max_log or max_results):
            return
        log_bytes += _EVENT_BYTES
        account = await self._account(owner)
        kept = account.total
        if max_log and kept.log_bytes + log_bytes > max_log:
            raise TooManyLogBytes(kept.log_bytes, max_log)
        if max_results and kept.result_bytes >= max_results:
            raise TooManyResultBytes(kept.result_bytes, max_results)
        reservation.add(account.log_bytes, log_bytes)
        reservation.add(account.result_bytes, result_bytes)

    async def open_jobs(self, owner: str) -> int:
        """Return the number of the owner's open jobs. Raises DatabaseUnavailable."""
        await self._count_open_jobs()
        account = (Limited.OWNER, owner)
        return self._rows[account] + self._of(account).total

    async def kept_bytes(self, owner: str) -> OwnerBytes:
        """Return the bytes that the owner keeps. Raises DatabaseUnavailable."""
        return (await self._account(owner)).total

    def _of(self, account: _Limit) -> Unprojected:
        new = Unprojected(offset=self._offset)
        return self._unprojected.setdefault(account, new)

    async def _count_open_jobs(self) -> None:
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
            self._counted_until = self._clock() + self._open_jobs_period_s

    async def _account(self, owner: str) -> _Account:
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
                pause_s = max(_KEPT_BYTES_PERIOD_S, _COUNTS_IN_TURN * (ended - began))
                account.counted_until = ended + pause_s
        return account


class Waits:
    """Limits the requests of one owner that wait at the same time; 0 means no limit."""

    def __init__(self, per_owner: int) -> None:
        self._per_owner = per_owner
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def hold(self, owner: str) -> Generator[None]:
        """Count a waiting request until the context ends. Raises TooManyWaits."""
        if self._per_owner and self._waiting[owner] >= self._per_owner:
            raise TooManyWaits(self._per_owner)
        self._waiting[owner] += 1
        try:
            yield
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner]
