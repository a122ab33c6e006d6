"""Events that have left the log while nobody followed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events.archive.history import History
from events.result import UrlFor
from events.streams.log_streams import LogPlace
from serve_app.access.turns import Turns
from serve_app.live.messages import is_shown, live_event
from serve_app.live.recent import Belonging, RecentEvent, without_request
from serve_app.refusals import CursorGone

if TYPE_CHECKING:
    from events.store.archiving.hot_jobs import HotJobs


class ArchivedEvents:
    def __init__(
        self,
        hot_jobs: HotJobs,
        history: History,
        turns: Turns,
        *,
        url_for: UrlFor,
        most_jobs: int,
    ) -> None:
        """`turns` at the archive, which is read for many jobs in a row."""
        self._hot_jobs = hot_jobs
        self._turns = turns
        self._history = history
        self._url_for = url_for
        self._most_jobs = most_jobs

    async def of(self, owner: str, *, after: LogPlace, upto: LogPlace) -> list[RecentEvent]:
        """Those of the owner's archived jobs after one place and up to another.

        Raises CursorGone where it is too many jobs, NoTurn, DatabaseUnavailable and what
        `History.read` raises.
        """
        async with self._turns.take(owner):
            jobs = await self._hot_jobs.left(owner, after=after, limit=self._most_jobs + 1)
            if len(jobs) > self._most_jobs:
                raise CursorGone(
                    f"More than {self._most_jobs:,} of your jobs behind this cursor are in the "
                    "archive."
                )
            return [
                RecentEvent(
                    live_event(without_request(event), self._url_for), Belonging(owner, endpoint)
                )
                for job_id, endpoint in jobs
                for event in await self._history.read(job_id)
                if event.position > after and event.position <= upto and is_shown(event)
            ]
