"""Results: projects the log into the SQL read model, from the checkpoint that stands beside it."""

from __future__ import annotations

from events.errors import DatabaseUnavailable
from events.log import EventLog
from events.retry import keep_trying
from events.store.read_model import ReadModel

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
                if not await self._read_model.apply(events, expected=checkpoint):
                    return
                checkpoint = events[-1].position
