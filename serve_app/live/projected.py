"""How far the rows have come behind the log, asked once for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_PERIOD_S = 0.02
_LONGEST_S = 1.0


class Projected:
    """`checkpoint` reads the position of the last event that the rows have."""

    def __init__(
        self, checkpoint: Callable[[], Awaitable[int]], *, longest_s: float = _LONGEST_S
    ) -> None:
        self._checkpoint = checkpoint
        self._longest_s = longest_s
        self._position = 0
        self._look: asyncio.Task[None] | None = None
        """The one under way: whoever comes meanwhile waits for the next one."""
        self._looked_at = 0.0

    async def reach(self, position: int) -> None:
        """Wait until the rows have the event at this position, or it has taken too long.

        Raises DatabaseUnavailable.
        """
        now = asyncio.get_running_loop().time
        give_up_at = now() + self._longest_s
        while self._position < position and (left_s := give_up_at - now()) > 0:
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._look_again())
                self._look.add_done_callback(_note)
            look = self._look
            await asyncio.wait({look}, timeout=left_s)
            if look.done() and not look.cancelled():
                look.result()

    async def _look_again(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._looked_at + _PERIOD_S - now())
        self._looked_at = now()
        self._position = max(self._position, await self._checkpoint())

    async def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)


def _note(look: asyncio.Task[None]) -> None:
    """Nobody may be left to whom its error is raised."""
    if not look.cancelled():
        look.exception()
