"""What follows a cursor and was there before the log was followed: read once for all streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from events.streams.contents import LogContents
from events.streams.log_streams import LogPlace, is_beyond, most_between, part_of
from events.types import Event
from events.wire.cloud_events import decode_stored
from serve_app.live.archived import ArchivedEvents
from serve_app.live.messages import is_shown
from serve_app.live.recent import RecentEvent, RecentEvents
from serve_app.refusals import CursorGone

NEVER_ANSWERED = "The cursor is not one that was answered here."
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

    async def reach(self, recent: RecentEvents, owner: str, after: LogPlace) -> list[RecentEvent]:
        """Add to `recent` what the log has after the place `after`.

        What has left the log is handed back, since it is one owner's. Raises CursorGone, and what
        reading log, database and archive raises.
        """
        async with self._reaching:
            await self._reach_back(recent, after)
        archived = []
        if is_beyond(recent.begun_at, after):
            archived = await self._archived.of(owner, after=after, upto=recent.begun_at)
        if is_beyond(recent.floor, after):  # so much came meanwhile
            raise self._too_far()
        return archived

    async def _reach_back(self, recent: RecentEvents, after: LogPlace) -> None:
        if is_beyond(after, recent.head) and is_beyond(after, await self._contents.last_sequence()):
            raise CursorGone(NEVER_ANSWERED)
        if not is_beyond(recent.floor, after):
            return
        if most_between(after, recent.head) > self._most:
            raise self._too_far()
        older = [
            kept
            async for event in self._between(after, recent)
            if (kept := await self._keep(event)) is not None
        ]
        recent.reach_back(older, floor=after)

    async def _between(self, after: LogPlace, recent: RecentEvents) -> AsyncGenerator[Event]:
        """What stands between `after` and the floor, which may rise meanwhile.

        Raises LogUnavailable.
        """
        streams = self._contents.parts
        at = [part_of(after, index) for index in range(len(streams))]

        def behind() -> list[int]:
            return [index for index, each in enumerate(at) if each < part_of(recent.floor, index)]

        while found := behind():
            index = found[0]
            floor = part_of(recent.floor, index)
            stored = await streams[index].following(at[index])
            for each in stored:
                await asyncio.sleep(0)  # requests may be large, and take long to be read
                event = decode_stored(each.payload, job_id="", position=each.sequence)
                if is_shown(event):
                    yield event
            at[index] = stored[-1].sequence if stored else floor  # the rest was removed

    def _too_far(self) -> CursorGone:
        return CursorGone(f"More than {self._most:,} events of the service follow this cursor.")
