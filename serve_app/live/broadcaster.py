"""Follows the log once for all streams of a replica, and only while there are any."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from events.errors import DatabaseUnavailable, JobUnreadable, LogUnavailable, ReadTimeout
from events.log import EventLog
from events.result import Status, UrlFor
from events.retry import keep_trying
from events.streams.contents import LogContents
from events.streams.log_streams import LogPlace, like
from events.types import Event
from events.wire.progress import JobProgress
from serve_app.live.archived import ArchivedEvents
from serve_app.live.backlog import NEVER_ANSWERED, Backlog
from serve_app.live.belongings import Belongings, FindJob
from serve_app.live.listener import Filter, Listener, LiveEvent, Passing
from serve_app.live.messages import (
    is_shown,
    live_event,
    preview_message,
    progress_message,
    status_at,
)
from serve_app.live.recent import Belonging, RecentEvent, RecentEvents, without_request
from serve_app.refusals import CursorGone
from settings.http import HttpSettings

logger = logging.getLogger(__name__)

_READ_TIMEOUT_S = 10.0
_LINGER_S = 30.0
"""How long the log is followed after the last stream has ended: mostly another one comes."""
_KNOWN_JOBS = 20_000
_TRIES = 3
"""How often a job is asked for whose events do not come in time. Each try takes long."""
_AWAY = (DatabaseUnavailable, LogUnavailable)


class Broadcaster:
    """Hands each event to the streams of its job and of its owner."""

    def __init__(
        self,
        log: EventLog,
        contents: LogContents,
        *,
        archived: ArchivedEvents,
        find_job: FindJob,
        url_for: UrlFor,
        settings: HttpSettings,
    ) -> None:
        """`contents` are those of `log`."""
        self._log = log
        self._contents = contents
        self._belongings = Belongings(find_job, most=_KNOWN_JOBS)
        self._backlog = Backlog(
            contents, archived, keep=self._kept, most=settings.stream_replay_events
        )
        self._url_for = url_for
        self._most_waiting = settings.stream_buffer_events
        self._most_recent = settings.stream_replay_events
        self._by_job: defaultdict[str, set[Listener]] = defaultdict(set)
        self._by_owner: defaultdict[str, set[Listener]] = defaultdict(set)
        self._users = 0
        self._recent: RecentEvents | None = None
        """What was followed so far; None while the log is not followed."""
        self._follower: asyncio.Task[None] | None = None
        self._look_ups: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._rest: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watch_job(self, job_id: str) -> AsyncGenerator[Listener]:
        """What is stored of the job from now on, and perhaps a little of what was before.

        Raises LogUnavailable.
        """
        listener = Listener(most_events=self._most_waiting)
        async with self._following():
            with _among(self._by_job, job_id, listener):
                yield listener

    @asynccontextmanager
    async def watch_owner(
        self, owner: str, only: Filter, *, after: LogPlace | None
    ) -> AsyncGenerator[Listener]:
        """What is stored of all jobs of the owner after the place `after`; None is now.

        Raises CursorGone, and what reading log, database and archive raises.
        """
        async with self._following() as recent:
            after = None if after is None else _as_here(after, recent)
            archived = [] if after is None else await self._before(recent, owner, after)
            # Nothing is awaited from here on until it listens, so nothing is missed.
            waiting = [] if after is None else recent.of(owner, after=after, archived=archived)
            listener = Listener(
                most_events=self._most_waiting,
                only=only,
                after=recent.head if after is None else after,
                waiting=[
                    each.live
                    for each in waiting
                    if only.takes(status_at(each.event), each.belonging.endpoint)
                ],
            )
            with _among(self._by_owner, owner, listener):
                yield listener

    def tell_progress(self, job_id: str, progress: JobProgress) -> None:
        """To whoever watches the job, or its owner; a preview only to those who watch the job."""
        if not self._by_job and not self._by_owner:
            return
        message = progress_message(job_id, progress)
        if watchers := self._by_job.get(job_id):
            preview = progress.preview and preview_message(job_id, progress, progress.preview)
            for listener in watchers:
                listener.put_passing(job_id, Passing.PROGRESS, message)
                if preview:
                    listener.put_passing(job_id, Passing.PREVIEW, preview)
        if not self._by_owner:
            return
        belonging = self._belongings.known(job_id)
        if belonging is None:
            self._look_up_later(job_id)
            return
        for listener in self._by_owner.get(belonging.owner, ()):
            if listener.only.takes(Status.RUNNING, belonging.endpoint):
                listener.put_passing(job_id, Passing.PROGRESS, message)

    def end_streams(self) -> None:
        """Every stream ends once it has sent what waits for it."""
        for listeners in (*self._by_job.values(), *self._by_owner.values()):
            for listener in listeners:
                listener.end()

    async def stop(self) -> None:
        """End every stream, and follow the log no more."""
        self.end_streams()
        self._forget()
        for task in self._look_ups.values():
            task.cancel()

    # Following the log.

    @asynccontextmanager
    async def _following(self) -> AsyncGenerator[RecentEvents]:
        self._users += 1
        try:
            yield await self._followed()
        finally:
            self._users -= 1
            if not self._users:
                self._rest = asyncio.get_running_loop().call_later(_LINGER_S, self._forget)

    async def _followed(self) -> RecentEvents:
        """Raises LogUnavailable."""
        async with self._changing:
            if self._rest is not None:
                self._rest.cancel()
                self._rest = None
            if self._recent is None:
                end = await self._contents.last_sequence()
                self._recent = RecentEvents(after=end, most=self._most_recent)
                self._follower = asyncio.create_task(self._follow(self._recent))
                self._follower.add_done_callback(self._fell)
            return self._recent

    def _forget(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        if self._follower is not None:
            self._follower.cancel()
        self._rest = self._follower = self._recent = None

    def _fell(self, follower: asyncio.Task[None]) -> None:
        """Streams end, and their readers go on where they were."""
        if follower is not self._follower:
            return
        if not follower.cancelled():
            fields = {"action": "follow_log"}
            logger.error("streams end", extra=fields, exc_info=follower.exception())
        self.end_streams()
        self._forget()

    async def _follow(self, recent: RecentEvents) -> None:
        async with self._log.reader(after=recent.head) as reader:
            while True:
                for event in await reader.next(_READ_TIMEOUT_S):
                    try:
                        await self._tell(event, recent)
                    except Exception:  # one job's error is no other's
                        fields = {"action": "tell_event", "job_id": event.job_id}
                        logger.exception("an event is not told", extra=fields)

    async def _tell(self, event: Event, recent: RecentEvents) -> None:
        if not is_shown(event):
            recent.pass_to(event.position)
            return
        event = without_request(event)
        live = self._live(event)
        for listener in self._by_job.get(event.job_id, ()):
            listener.put(live)
        belonging = await keep_trying(lambda: self._belonging(event), on=_AWAY)
        if belonging is None:
            recent.pass_to(event.position)
            return
        recent.add(RecentEvent(live, belonging))
        for listener in self._by_owner.get(belonging.owner, ()):
            if listener.only.takes(status_at(event), belonging.endpoint):
                listener.put(live)

    def _live(self, event: Event) -> LiveEvent:
        return live_event(event, self._url_for)

    async def _belonging(self, event: Event) -> Belonging | None:
        """None where it cannot be told, which is that job's own trouble."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._belongings.of(event)
            except (JobUnreadable, ReadTimeout) as error:
                if tries_left and isinstance(error, ReadTimeout):
                    continue
                fields = {"action": "tell_event", "job_id": event.job_id, "error": str(error)}
                logger.warning("an event is not told to its owner", extra=fields)
                break
        return None

    # What was not followed.

    async def _before(self, recent: RecentEvents, owner: str, after: LogPlace) -> list[RecentEvent]:
        """See `Backlog.reach`."""
        archived = await self._backlog.reach(recent, owner, after)
        if recent is not self._recent:
            raise LogUnavailable("The event log is followed anew. Try again.")
        return archived

    async def _kept(self, event: Event) -> RecentEvent | None:
        belonging = await self._belonging(event)
        if belonging is None:
            return None
        return RecentEvent(self._live(without_request(event)), belonging)

    def _look_up_later(self, job_id: str) -> None:
        if job_id not in self._look_ups:
            task = asyncio.create_task(self._look_up(job_id))
            self._look_ups[job_id] = task
            task.add_done_callback(lambda _task: self._look_ups.pop(job_id, None))

    async def _look_up(self, job_id: str) -> None:
        try:
            await self._belongings.look_up(job_id)
        except (JobUnreadable, ReadTimeout, *_AWAY):
            return  # the next step asks again


def _as_here(cursor: LogPlace, recent: RecentEvents) -> LogPlace:
    """With as many parts as the log has. Raises CursorGone."""
    try:
        return like(cursor, recent.head)
    except ValueError:
        raise CursorGone(NEVER_ANSWERED) from None


@contextmanager
def _among(
    listeners: defaultdict[str, set[Listener]], name: str, listener: Listener
) -> Generator[None]:
    listeners[name].add(listener)
    try:
        yield
    finally:
        listeners[name].discard(listener)
        if not listeners[name]:
            del listeners[name]
