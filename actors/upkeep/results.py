"""Results: projects the log into the SQL read model, from the checkpoint that stands beside it.

Each stream of the log has a projection of its own, with its own checkpoint: none waits for another.
Several processes divide the streams (`actors/upkeep/shares.py`). Where two project one stream for a
moment, the checkpoint, which moves in the rows' transaction, lets each event be folded once and in
its place.

It stops at a job with an event that it cannot project, and goes on with the others. Such jobs are
kept (`events/store/blocked.py`), and read from the log again at each start and every so often: a
version that knows the event ends the stop, whichever left it out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from actors.upkeep.shares import Shares
from events.errors import DatabaseUnavailable, JobUnreadable, LogUnavailable, ReadTimeout
from events.log import EventReader, WholeLog
from events.retry import keep_trying
from events.store.blocked import Stop
from events.store.read_model import ReadModel
from events.types import Event

logger = logging.getLogger(__name__)

_POLL_S = 5.0
_GATHER_S = 0.1
"""How long an event waits for those that follow it: they share its transaction."""
_FULL = 400
"""Of so many events nobody waits for more."""
_PAGE = 500
_PASSING = (DatabaseUnavailable, LogUnavailable, ReadTimeout)
"""Errors that say nothing about a job."""


class Results:
    """Has no durable consumer: the position lives in the database, in the rows' transaction."""

    def __init__(
        self,
        *,
        log: WholeLog,
        read_model: ReadModel,
        catch_up_period_s: float,
        shares: Shares | None = None,
    ) -> None:
        """`catch_up_period_s`: how often the jobs that were stopped at are looked at again.

        `shares`: of the streams of `log`; None where no other process projects any.
        """
        self._log = log
        self._read_model = read_model
        self._catch_up_period_s = catch_up_period_s
        self._shares = shares
        self._hopeless: set[tuple[str, int]] = set()
        """Jobs that this version cannot project, with the place: it learns nothing new."""

    async def run(self) -> None:
        """Project until cancelled."""
        indexes = range(len(self._log.parts))
        if self._shares is not None:
            await self._shares.run([*map(str, indexes)], lambda part: self._work_on(int(part)))
        else:
            async with asyncio.TaskGroup() as group:
                for index in indexes:
                    group.create_task(self._work_on(index))

    async def _work_on(self, index: int) -> None:
        """Who has the first stream catches up for all of them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(index))
            if index == 0:
                group.create_task(self._keep_catching_up())

    async def _follow(self, index: int) -> None:
        while True:
            await keep_trying(
                lambda: self._project(index),
                on=DatabaseUnavailable,
                first_pause_s=1,
                longest_pause_s=1,
                fields={"action": "project"},
            )

    async def _project(self, index: int) -> None:
        """Of one stream. Returns where another instance turned out to be ahead: the caller begins
        again.
        """
        await self._read_model.begin()
        place = await self._read_model.checkpoint()
        checkpoint = place if isinstance(place, int) else place.parts[index]
        async with self._log.parts[index].reader(after=checkpoint) as reader:
            while True:
                events = await self._next(reader)
                if not events:
                    continue
                if not await self._apply(events, expected=checkpoint):
                    return
                checkpoint = events[-1].position

    async def _next(self, reader: EventReader) -> list[Event]:
        """Some events that follow one another; none where none came for a while."""
        events = await reader.next(_POLL_S)
        if 0 < len(events) < _FULL:
            await asyncio.sleep(_GATHER_S)
            events += await reader.next(0)
        return events

    async def _apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """An event that cannot be projected stops its own job, and not all that follow."""
        try:
            return await self._read_model.apply(events, expected=expected)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if len(events) == 1:
                fields = {"action": "project", "job_id": events[0].job_id}
                logger.exception("event not projected", extra=fields)
                why = f"no row can hold it ({type(error).__name__})"
                return await self._read_model.stop_at(events[0], why, expected=expected)
        for event in events:
            if not await self._apply([event], expected=expected):
                return False
            expected = event.position
        return True

    async def _keep_catching_up(self) -> None:
        while True:
            try:
                await self._catch_up()
            except _PASSING as error:
                fields = {"action": "catch_up", "error": str(error)}
                logger.warning("could not look at the stopped jobs", extra=fields)
            await asyncio.sleep(self._catch_up_period_s * random.uniform(0.8, 1.2))

    async def _catch_up(self) -> None:
        at = 0
        while stops := await self._read_model.blocked.stops(after=at, limit=_PAGE):
            for stop in stops:
                if (stop.job_id, stop.position) not in self._hopeless:
                    await self._catch_up_with(stop)
            at = stops[-1].position

    async def _catch_up_with(self, stop: Stop) -> None:
        fields = {"action": "catch_up", "job_id": stop.job_id}
        try:
            history = await self._log.read(stop.job_id)
            if await self._read_model.catch_up(stop.job_id, history):
                logger.info("job goes on", extra=fields)
        except _PASSING:
            raise
        except Exception as error:
            self._hopeless.add((stop.job_id, stop.position))
            if not isinstance(error, JobUnreadable):
                logger.exception("job not projected", extra=fields)
