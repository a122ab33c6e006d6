"""Broadcaster: follows the log once for all streams of a replica, while streams are open.

`RecentEvents` keeps the latest events of all owners, so that a stream can resume at its cursor.
`OwnersAndEndpoints` finds the owner of an event. `HistoryEvents` reads events that are no longer in
the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from events.bus.jetstream_log import LogContents
from events.cloud_events import decode_stored
from events.errors import (
    DatabaseUnavailable,
    HistoryBroken,
    JobUnreadable,
    LogUnavailable,
    ReadTimeout,
)
from events.history import History
from events.job import Job
from events.job_progress import JobProgress
from events.log import EventLog
from events.result import Status, UrlFor
from events.retry import keep_trying
from events.types import Erased, Event, Submitted
from serve_app.fair_threads import FairSemaphore
from serve_app.live.listener import Filter, Listener, LiveEvent, UnstoredKind
from serve_app.live.messages import (
    is_shown,
    live_event,
    preview_message,
    progress_message,
    status_at,
)
from serve_app.refusals import CursorGone
from settings.constant import constant
from storage.images import ImageNotFound

if TYPE_CHECKING:
    from events.store.ended_jobs import EndedJobs

logger = logging.getLogger(__name__)

NEVER_ANSWERED = "The cursor is not valid. Use the cursor of an earlier answer."
BUFFER_EVENTS = constant("STREAM_BUFFER_EVENTS", 500)
"""The most events that wait for the client of a stream. If more wait, the stream is closed."""
_REPLAY_EVENTS = constant("STREAM_REPLAY_EVENTS", 10_000)
"""The largest number of events of all owners that are kept in memory while streams are open. An
event takes about 2 kB. The cursor of an owner's stream may be this many events behind the end of
the log.
"""
_READ_TIMEOUT_S = 10.0
_LINGER_S = 30.0
"""Seconds for which the log is still followed after the last stream, for clients that reconnect."""
_KNOWN_JOBS = 20_000
_TRIES = 3
"""The number of times that a job is looked up if the read times out."""
_UNAVAILABLE = (DatabaseUnavailable, LogUnavailable)


@dataclass(frozen=True, slots=True)
class OwnerAndEndpoint:
    owner: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class RecentEvent:
    live: LiveEvent
    """The encoded event, shared by all streams that send it."""
    belonging: OwnerAndEndpoint

    @property
    def event(self) -> Event:
        return self.live.event

    @property
    def position(self) -> int:
        return self.live.position


class RecentEvents:
    """The events for streams after the offset `floor` up to `head`, in the order of the log."""

    def __init__(self, *, after: int, most: int) -> None:
        self.floor = after
        self.head = after
        self.begun_at = after
        """The offset at which following began. Older events may be only in history objects."""
        self._most = most
        self._events: deque[RecentEvent] = deque()

    def add(self, recent: RecentEvent) -> None:
        """Append an event. An `Erased` event removes all earlier events of its job."""
        if isinstance(recent.event.data, Erased):
            self._forget(recent.event.job_id)
        self._events.append(recent)
        self.head = max(self.head, recent.event.position)
        while len(self._events) > self._most:
            self.floor = self._events.popleft().event.position

    def move_head(self, position: int) -> None:
        """Move the head past events that streams do not send."""
        self.head = max(self.head, position)

    def add_older(self, older: Sequence[RecentEvent], *, floor: int) -> None:
        """Add the events after `floor` up to `self.floor`, without the limit `most`.

        `older` may contain events that are already present.
        """
        erased = {each.event.job_id for each in self._events if isinstance(each.event.data, Erased)}
        kept = [
            each
            for each in older
            if each.event.position <= self.floor and each.event.job_id not in erased
        ]
        self._events.extendleft(reversed(kept))
        self.floor = min(floor, self.floor)

    def of(
        self, owner: str, *, after: int, from_histories: Sequence[RecentEvent] = ()
    ) -> list[RecentEvent]:
        """Return the owner's events after the offset `after`, in order.

        `from_histories` are the owner's events that are no longer in the log. They are included.
        """
        found = {each.event.position: each for each in from_histories}
        for each in self._events:
            if each.event.position > after and each.belonging.owner == owner:
                found[each.event.position] = each
        return [found[position] for position in sorted(found)]

    def _forget(self, job_id: str) -> None:
        kept = (each for each in self._events if each.event.job_id != job_id)
        self._events = deque(kept)


def without_request(event: Event) -> Event:
    """Return the event without its request, which may be large and is not shown by streams."""
    if not isinstance(event.data, Submitted):
        return event
    return replace(event, data=event.data.model_copy(update={"request": {}, "input_files": None}))


FindJob = Callable[[str], Awaitable[Job | None]]
"""Returns a job by its id. Raises the errors of `Jobs.current`."""


class OwnersAndEndpoints:
    """Caches the owner and endpoint of recent jobs. Other jobs are looked up."""

    def __init__(self, find_job: FindJob, *, most: int) -> None:
        self._find_job = find_job
        self._most = most
        self._known: OrderedDict[str, OwnerAndEndpoint] = OrderedDict()

    def known(self, job_id: str) -> OwnerAndEndpoint | None:
        return self._known.get(job_id)

    async def of(self, event: Event) -> OwnerAndEndpoint | None:
        """Return None if the event's job no longer exists. Raises the errors of `FindJob`."""
        match event.data:
            case Submitted() | Erased() as data:
                return self._note(event.job_id, OwnerAndEndpoint(data.owner, data.endpoint))
            case _:
                return await self.look_up(event.job_id)

    async def look_up(self, job_id: str) -> OwnerAndEndpoint | None:
        """Return None if the job does not exist. Raises the errors of `FindJob`."""
        if (known := self._known.get(job_id)) is not None:
            return known
        job = await self._find_job(job_id)
        if job is None:
            return None
        return self._note(job_id, OwnerAndEndpoint(job.submitted.owner, job.submitted.endpoint))

    def _note(self, job_id: str, belonging: OwnerAndEndpoint) -> OwnerAndEndpoint:
        self._known[job_id] = belonging
        self._known.move_to_end(job_id)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return belonging


class HistoryEvents:
    def __init__(
        self,
        ended_jobs: EndedJobs,
        history: History,
        turns: FairSemaphore,
        *,
        url_for: UrlFor,
        most_jobs: int,
    ) -> None:
        """`turns` limits how many callers read histories at the same time."""
        self._ended_jobs = ended_jobs
        self._turns = turns
        self._history = history
        self._url_for = url_for
        self._most_jobs = most_jobs

    async def of(self, owner: str, *, after: int, upto: int) -> list[RecentEvent]:
        """Return the events after `after` up to `upto` of the owner's jobs with a history object.

        Raises CursorGone if there are too many jobs, Busy, DatabaseUnavailable and the errors
        of `History.read`.
        """
        async with self._turns.acquire(owner):
            jobs = await self._ended_jobs.with_history(
                owner, after=after, limit=self._most_jobs + 1
            )
            if len(jobs) > self._most_jobs:
                raise CursorGone(
                    f"More than {self._most_jobs:,} of your jobs after this cursor have left the "
                    "event log."
                )
            return [
                RecentEvent(
                    live_event(without_request(event), self._url_for),
                    OwnerAndEndpoint(owner, endpoint),
                )
                for job_id, endpoint in jobs
                for event in await self._read(job_id)
                if event.position > after and event.position <= upto and is_shown(event)
            ]

    async def _read(self, job_id: str) -> Sequence[Event]:
        """Return the events of a job; none if its history object is lost or damaged."""
        try:
            return await self._history.read(job_id)
        except (HistoryBroken, ImageNotFound) as error:
            fields = {"action": "read_history", "job_id": job_id, "error": str(error)}
            logger.error("a history cannot be read", extra=fields)
            return ()


Keep = Callable[[Event], Awaitable[RecentEvent | None]]
"""Returns an event in encoded form with its owner; None if the owner is unknown."""


class Backlog:
    def __init__(
        self, contents: LogContents, histories: HistoryEvents, *, keep: Keep, most: int
    ) -> None:
        """A cursor may be at most `most` events of the service behind the end of the log."""
        self._contents = contents
        self._histories = histories
        self._keep = keep
        self._most = most
        self._reaching = asyncio.Lock()

    async def reach(self, recent: RecentEvents, owner: str, after: int) -> list[RecentEvent]:
        """Add to `recent` the events of the log after the offset `after`.

        Returns the owner's events that are no longer in the log. Raises CursorGone, and the errors
        of reading the log, the database and histories.
        """
        async with self._reaching:
            await self._reach_back(recent, after)
        from_histories = []
        if recent.begun_at > after:
            from_histories = await self._histories.of(owner, after=after, upto=recent.begun_at)
        if recent.floor > after:  # Too many new events arrived during the reads.
            raise self._too_far()
        return from_histories

    async def _reach_back(self, recent: RecentEvents, after: int) -> None:
        if after > recent.head and after > await self._contents.last_sequence():
            raise CursorGone(NEVER_ANSWERED)
        if recent.floor <= after:
            return
        if recent.head - after > self._most:
            raise self._too_far()
        older = [
            kept
            async for event in self._between(after, recent)
            if (kept := await self._keep(event)) is not None
        ]
        recent.add_older(older, floor=after)

    async def _between(self, after: int, recent: RecentEvents) -> AsyncGenerator[Event]:
        """Yield the stored events between `after` and the floor of `recent`.

        The floor may rise during the iteration. Raises LogUnavailable.
        """
        at = after
        while at < (floor := recent.floor):
            stored = await self._contents.following(at)
            for each in stored:
                # The pause lets other tasks run, because parsing large requests takes long.
                await asyncio.sleep(0)
                event = decode_stored(each.payload, job_id="", position=each.sequence)
                if is_shown(event):
                    yield event
            # If the log has no event after `at`, the loop ends.
            at = stored[-1].sequence if stored else floor

    def _too_far(self) -> CursorGone:
        return CursorGone(f"More than {self._most:,} events of the service follow this cursor.")


class Broadcaster:
    """Passes each event to the streams of its job and of its owner."""

    def __init__(
        self,
        log: EventLog,
        contents: LogContents,
        *,
        histories: HistoryEvents,
        find_job: FindJob,
        url_for: UrlFor,
    ) -> None:
        """`contents` must read the same log as `log`."""
        self._log = log
        self._contents = contents
        self._belongings = OwnersAndEndpoints(find_job, most=_KNOWN_JOBS)
        self._backlog = Backlog(contents, histories, keep=self._kept, most=_REPLAY_EVENTS)
        self._url_for = url_for
        self._by_job: defaultdict[str, set[Listener]] = defaultdict(set)
        self._by_owner: defaultdict[str, set[Listener]] = defaultdict(set)
        self._users = 0
        self._recent: RecentEvents | None = None
        """The events received since following began; None while the log is not followed."""
        self._follower: asyncio.Task[None] | None = None
        self._look_ups: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._forget_timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watch_job(self, job_id: str) -> AsyncGenerator[Listener]:
        """Listen to new events of a job. A few earlier events may be delivered as well.

        Raises LogUnavailable.
        """
        listener = Listener(most_events=BUFFER_EVENTS)
        async with self._following():
            with _among(self._by_job, job_id, listener):
                yield listener

    @asynccontextmanager
    async def watch_owner(
        self, owner: str, only: Filter, *, after: int | None
    ) -> AsyncGenerator[Listener]:
        """Listen to the events of all jobs of the owner after the offset `after`; None means now.

        Raises CursorGone, and the errors of the log, the database and the histories.
        """
        async with self._following() as recent:
            from_histories = [] if after is None else await self._before(recent, owner, after)
            # Nothing is awaited from here until the listener is registered, so no event is missed.
            waiting = (
                []
                if after is None
                else recent.of(owner, after=after, from_histories=from_histories)
            )
            listener = Listener(
                most_events=BUFFER_EVENTS,
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

    def send_progress(self, job_id: str, progress: JobProgress) -> None:
        """Send progress to the listeners of the job and of its owner.

        Only the listeners of the job get previews.
        """
        if not self._by_job and not self._by_owner:
            return
        message = progress_message(job_id, progress)
        if watchers := self._by_job.get(job_id):
            preview = progress.preview and preview_message(job_id, progress, progress.preview)
            for listener in watchers:
                listener.put_unstored(job_id, UnstoredKind.PROGRESS, message)
                if preview:
                    listener.put_unstored(job_id, UnstoredKind.PREVIEW, preview)
        if not self._by_owner:
            return
        belonging = self._belongings.known(job_id)
        if belonging is None:
            self._look_up_later(job_id)
            return
        for listener in self._by_owner.get(belonging.owner, ()):
            if listener.only.takes(Status.RUNNING, belonging.endpoint):
                listener.put_unstored(job_id, UnstoredKind.PROGRESS, message)

    def end_streams(self) -> None:
        """End all streams. Each stream first sends its buffered events."""
        for listeners in (*self._by_job.values(), *self._by_owner.values()):
            for listener in listeners:
                listener.end()

    async def stop(self) -> None:
        """End all streams, and stop following the log."""
        self.end_streams()
        self._forget()
        for task in self._look_ups.values():
            task.cancel()

    @asynccontextmanager
    async def _following(self) -> AsyncGenerator[RecentEvents]:
        self._users += 1
        try:
            yield await self._followed()
        finally:
            self._users -= 1
            if not self._users:
                self._forget_timer = asyncio.get_running_loop().call_later(_LINGER_S, self._forget)

    async def _followed(self) -> RecentEvents:
        """Follow the log, and return its recent events. Raises LogUnavailable."""
        async with self._changing:
            if self._forget_timer is not None:
                self._forget_timer.cancel()
                self._forget_timer = None
            if self._recent is None:
                end = await self._contents.last_sequence()
                self._recent = RecentEvents(after=end, most=_REPLAY_EVENTS)
                self._follower = asyncio.create_task(self._follow(self._recent))
                self._follower.add_done_callback(self._note_follow_end)
            return self._recent

    def _forget(self) -> None:
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        if self._follower is not None:
            self._follower.cancel()
        self._forget_timer = self._follower = self._recent = None

    def _note_follow_end(self, follower: asyncio.Task[None]) -> None:
        """End all streams after an error, so that their clients resume from their cursors."""
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
                    # An error in one job must not stop the streams of other jobs.
                    except Exception:
                        fields = {"action": "tell_event", "job_id": event.job_id}
                        logger.exception("an event cannot be sent to streams", extra=fields)

    async def _tell(self, event: Event, recent: RecentEvents) -> None:
        if not is_shown(event):
            recent.move_head(event.position)
            return
        event = without_request(event)
        live = self._live(event)
        for listener in self._by_job.get(event.job_id, ()):
            listener.put(live)
        belonging = await keep_trying(lambda: self._belonging(event), on=_UNAVAILABLE)
        if belonging is None:
            recent.move_head(event.position)
            return
        recent.add(RecentEvent(live, belonging))
        for listener in self._by_owner.get(belonging.owner, ()):
            if listener.only.takes(status_at(event), belonging.endpoint):
                listener.put(live)

    def _live(self, event: Event) -> LiveEvent:
        return live_event(event, self._url_for)

    async def _belonging(self, event: Event) -> OwnerAndEndpoint | None:
        """Return the owner and endpoint of the event's job; None if they cannot be determined."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._belongings.of(event)
            except (JobUnreadable, ReadTimeout) as error:
                if tries_left and isinstance(error, ReadTimeout):
                    continue
                fields = {"action": "tell_event", "job_id": event.job_id, "error": str(error)}
                logger.warning("an event cannot be sent to its owner", extra=fields)
                break
        return None

    async def _before(self, recent: RecentEvents, owner: str, after: int) -> list[RecentEvent]:
        """Return the result of `Backlog.reach`.

        Raises its errors, and LogUnavailable if the log is no longer followed for `recent`.
        """
        from_histories = await self._backlog.reach(recent, owner, after)
        if recent is not self._recent:
            raise LogUnavailable("The event stream was interrupted. Try again.")
        return from_histories

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
        except (JobUnreadable, ReadTimeout, *_UNAVAILABLE):
            return  # The next report of progress starts another look-up.


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
