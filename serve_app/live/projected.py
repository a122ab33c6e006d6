"""How far the rows have come behind the log, asked once for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from events.streams.log_streams import LogPlace, is_beyond

_PERIOD_S = 0.02
_LONGEST_S = 1.0


class Projected:
    """`checkpoint` reads up to where the rows have the events."""

    def __init__(
        self, checkpoint: Callable[[], Awaitable[LogPlace]], *, longest_s: float = _LONGEST_S
    ) -> None:
        self._checkpoint = checkpoint
        self._longest_s = longest_s
        self._place: LogPlace | None = None
        self._look: asyncio.Task[None] | None = None
        """The one under way: whoever comes meanwhile waits for the next one."""
        self._looked_at = 0.0

    async def reach(self, place: LogPlace) -> None:
        """Wait until the rows have what is up to there, or it has taken too long.

        Raises DatabaseUnavailable.
        """
        now = asyncio.get_running_loop().time
        give_up_at = now() + self._longest_s
        while self._is_behind(place) and (left_s := give_up_at - now()) > 0:
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
        self._place = await self._checkpoint()

    def _is_behind(self, place: LogPlace) -> bool:
        return self._place is None or is_beyond(place, self._place)

    async def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)


def _note(look: asyncio.Task[None]) -> None:
    """Nobody may be left to whom its error is raised."""
    if not look.cancelled():
        look.exception()
