"""Results: projects the log into the SQL read model, from the checkpoint that stands beside it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from events.errors import DatabaseUnavailable
from events.log import EventLog
from events.retry import keep_trying
from events.store.read_model import ReadModel
from events.types import Event

logger = logging.getLogger(__name__)

_POLL_S = 5.0


class Results:
    """Has no durable consumer: the position lives in the database, in the rows' transaction."""

    def __init__(self, *, log: EventLog, read_model: ReadModel) -> None:
        self._log = log
        self._read_model = read_model

    async def run(self) -> None:
        """Project until cancelled."""
        while True:
            await keep_trying(
                self._project,
                on=DatabaseUnavailable,
                first_pause_s=1,
                longest_pause_s=1,
                fields={"action": "project"},
            )

    async def _project(self) -> None:
        """Returns where another instance turned out to be ahead: the caller begins again."""
        checkpoint = await self._read_model.checkpoint()
        async with self._log.reader(after=checkpoint) as reader:
            while True:
                events = await reader.next(_POLL_S)
                if not events:
                    continue
                if not await self._apply(events, expected=checkpoint):
                    return
                checkpoint = events[-1].position

    async def _apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """One event that cannot be projected is passed over; it must not stop all that follow."""
        try:
            return await self._read_model.apply(events, expected=expected)
        except DatabaseUnavailable:
            raise
        except Exception:
            if len(events) == 1:
                fields = {"action": "project", "job_id": events[0].job_id}
                logger.exception("event not projected", extra=fields)
                return await self._read_model.skip(events[0], expected=expected)
        for event in events:
            if not await self._apply([event], expected=expected):
                return False
            expected = event.position
        return True
