"""How many bytes of the event log, of results and of uploads an owner keeps."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from events.store.records import KeptBytes
from serve_app.access.unprojected import NoteStored, Unprojected
from serve_app.refusals import TooManyLogBytes, TooManyResultBytes
from settings.keys import OwnerSettings

if TYPE_CHECKING:
    from events.store.usage import Usage

KEPT_BYTES_PERIOD_S = 1.0
"""How often at most a replica adds up what one owner keeps."""
_COUNTS_IN_TURN = 50
"""One part in so many of the time is spent on adding up, however long it takes."""
_EVENT_BYTES = 1024
"""What a submission takes of the log beside its body, about."""


@dataclass(slots=True)
class _Account:
    """What is known of one owner."""

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
    """Adds up the rows of an owner, and the jobs that this replica stored after them.

    Of jobs it is as exact as `OpenJobs`. The results of an open job count for the most that they
    may take. Uploads are known at the next time.
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
        self._settings = settings
        self._period_s = period_s
        self._max_owners = max_owners
        self._clock = clock
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """Those last asked for at the end; the first go where there are too many."""

    async def kept(self, owner: str) -> KeptBytes:
        """Raises DatabaseUnavailable."""
        return (await self._counted(owner)).total

    @asynccontextmanager
    async def room(
        self, owner: str, body_bytes: int, *, result_bytes: int = 0
    ) -> AsyncGenerator[NoteStored]:
        """Hold room for a job of a body so long and of results so large; call the given function
        once it is stored.

        Raises TooManyLogBytes, TooManyResultBytes, DatabaseUnavailable.
        """
        max_log, max_results = self._settings.max_log_bytes, self._settings.max_result_bytes
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
        """One query for an owner, once a period."""
        account = self._accounts.setdefault(owner, _Account())
        self._accounts.move_to_end(owner)
        if len(self._accounts) > self._max_owners:
            self._accounts.popitem(last=False)
        if self._clock() < account.counted_until:
            return account
        async with account.counting:
            began = self._clock()
            if began >= account.counted_until:
                checkpoint, account.kept = await self._usage.kept_bytes(owner)
                account.log_bytes.drop_until(checkpoint)
                account.result_bytes.drop_until(checkpoint)
                ended = self._clock()
                pause_s = max(self._period_s, _COUNTS_IN_TURN * (ended - began))
                account.counted_until = ended + pause_s
        return account
