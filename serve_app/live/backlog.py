"""What follows a cursor and was there before the log was followed: read once for all streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from events.log import LogContents
from events.types import Event
from events.wire.cloud_events import decode_stored
from serve_app.live.archived import ArchivedEvents
from serve_app.live.messages import is_shown
from serve_app.live.recent import RecentEvent, RecentEvents
from serve_app.refusals import CursorGone

Keep = Callable[[Event], Awaitable[RecentEvent | None]]
"""An event as streams are sent it, with whose it is; None where that cannot be told."""


class Backlog:
    def __init__(
        self, contents: LogContents, archived: ArchivedEvents, *, keep: Keep, most: int
    ) -> None:
        """`most`: how many events of the service a cursor may be behind."""
        self._contents = contents
        self._archived = archived
        self._keep = keep
        self._most = most
        self._reaching = asyncio.Lock()

    async def reach(self, recent: RecentEvents, owner: str, after: int) -> list[RecentEvent]:
        """Add to `recent` what the log has after position `after`.

        What has left the log is handed back, since it is one owner's. Raises CursorGone, and what
        reading log, database and archive raises.
        """
        async with self._reaching:
            await self._reach_back(recent, after)
        archived = []
        if after < recent.begun_at:
            archived = await self._archived.of(owner, after=after, upto=recent.begun_at)
        if after < recent.floor:  # so much came meanwhile
            raise self._too_far()
        return archived

    async def _reach_back(self, recent: RecentEvents, after: int) -> None:
        if after >= recent.floor:
            if after > recent.head and after > await self._contents.last_sequence():
                raise CursorGone("The cursor is not one that was answered here.")
            return
        if recent.head - after > self._most:
            raise self._too_far()
        older = [
            kept
            async for event in self._between(after, recent)
            if (kept := await self._keep(event)) is not None
        ]
        recent.reach_back(older, floor=after)

    async def _between(self, after: int, recent: RecentEvents) -> AsyncGenerator[Event]:
        """What stands between `after` and the floor, which may rise meanwhile.

        Raises LogUnavailable.
        """
        while after < recent.floor:
            stored = await self._contents.following(after)
            if not stored:
                return  # the rest was removed
            for each in stored:
                await asyncio.sleep(0)  # requests may be large, and take long to be read
                event = decode_stored(each.payload, job_id="", position=each.sequence)
                if is_shown(event):
                    yield event
            after = stored[-1].sequence

    def _too_far(self) -> CursorGone:
        return CursorGone(f"More than {self._most:,} events of the service follow this cursor.")
