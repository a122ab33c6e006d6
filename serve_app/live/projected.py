"""Waits until the read model has reached an offset. All waiting callers share one query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_PERIOD_S = 0.02
_LONGEST_S = 1.0


class ProjectionWaiter:
    def __init__(
        self,
        read_offset: Callable[[], Awaitable[int]],
        last_sequence: Callable[[], Awaitable[int]],
        *,
        longest_s: float = _LONGEST_S,
    ) -> None:
        """`read_offset` reads the offset of the read model, `last_sequence` the end of the log."""
        self._read_offset = read_offset
        self._last_sequence = last_sequence
        self._longest_s = longest_s
        self._offset: int | None = None
        self._look: asyncio.Task[None] | None = None
        """The running call of `read_offset`, which all callers share."""
        self._looked_at = 0.0

    async def reach(self, offset: int | None = None) -> None:
        """Wait until the read model has all events up to `offset`, or `longest_s` have passed.

        None means all events that are stored now. Raises DatabaseUnavailable, LogUnavailable.
        """
        if offset is None:
            offset = await self._last_sequence()
        now = asyncio.get_running_loop().time
        give_up_at = now() + self._longest_s
        while self._is_behind(offset) and (left_s := give_up_at - now()) > 0:
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._look_again())
                self._look.add_done_callback(_retrieve_error)
            look = self._look
            await asyncio.wait({look}, timeout=left_s)
            if look.done() and not look.cancelled():
                look.result()

    async def _look_again(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._looked_at + _PERIOD_S - now())
        self._looked_at = now()
        self._offset = await self._read_offset()

    def _is_behind(self, offset: int) -> bool:
        return self._offset is None or offset > self._offset

    async def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)


def _retrieve_error(look: asyncio.Task[None]) -> None:
    """Retrieve the error of a read, because asyncio logs an error that nothing has retrieved."""
    if not look.cancelled():
        look.exception()
