"""RunningElsewhere: what dispatchers of other endpoints run for each owner, told to one another.

So the bound of an owner's running jobs holds over all of them, but for what two start within a
quarter of a second of each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from actors.waiting.running_jobs import RunningJobs
from events.wire.running import RunningCounts

_PAUSE_S = 0.25
"""Between two tellings of what has changed."""
_WHOLE_S = 1.0
"""How often all is told, for those that have just come, or have missed something."""
_SILENT_S = 5.0
"""What a dispatcher runs that said nothing for so long is counted no more."""


@dataclass(slots=True)
class _Other:
    heard_at: float
    by_owner: dict[str, int] = field(default_factory=dict)


class RunningElsewhere:
    def __init__(
        self,
        running_jobs: RunningJobs,
        *,
        dispatcher: str,
        tell: Callable[[RunningCounts], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`running_jobs`: of this process, whose name is `dispatcher`."""
        self._running_jobs = running_jobs
        self._dispatcher = dispatcher
        self._tell = tell
        self._clock = clock
        self._told: Mapping[str, int] = {}
        self._whole_at = clock()
        self._others: dict[str, _Other] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_PAUSE_S)

    async def look(self) -> None:
        """Tell what has changed, or all if it is time for that; forget those that are silent."""
        now, counts = self._clock(), self._running_jobs.by_owner()
        if now >= self._whole_at:
            self._whole_at = now + _WHOLE_S
            await self._tell(RunningCounts(self._dispatcher, counts, is_whole=True))
        elif changed := _changed(self._told, counts):
            await self._tell(RunningCounts(self._dispatcher, changed, is_whole=False))
        self._told = counts
        for name, other in list(self._others.items()):
            if now - other.heard_at >= _SILENT_S:
                del self._others[name]
                self._note(_changed(other.by_owner, {}), before=other.by_owner)

    def hear(self, said: RunningCounts) -> None:
        """What a dispatcher told, which may be this one."""
        if said.dispatcher == self._dispatcher:
            return
        other = self._others.setdefault(said.dispatcher, _Other(self._clock()))
        other.heard_at = self._clock()
        before, by_owner = other.by_owner, said.by_owner
        other.by_owner = dict(by_owner) if said.is_whole else {**before, **by_owner}
        self._note(_changed(before, other.by_owner), before=before)

    def _note(self, changed: Mapping[str, int], *, before: Mapping[str, int]) -> None:
        for owner, count in changed.items():
            self._running_jobs.note_elsewhere(owner, count - before.get(owner, 0))


def _changed(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """The counts of now that were others before."""
    owners = before.keys() | now.keys()
    return {
        owner: now.get(owner, 0) for owner in owners if now.get(owner, 0) != before.get(owner, 0)
    }
