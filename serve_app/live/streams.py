"""The streams of one replica: of a job, and of all jobs of an owner."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from events.job import Job
from events.streams.log_streams import LogPlace
from serve_app.access.turns import Turns
from serve_app.job_state import current_job
from serve_app.live.archived import ArchivedEvents
from serve_app.live.broadcaster import Broadcaster
from serve_app.live.event_stream import EventStream, Following
from serve_app.live.listener import Filter, Listener, LiveEvent
from serve_app.live.messages import is_shown, live_event, place_message
from serve_app.live.open_streams import OpenStreams
from serve_app.live.queue_places import QueuePlaces
from serve_app.live.server_end import ServerEnd
from serve_app.services import Services
from settings.http import HttpSettings

MayGoOn = Callable[[], Awaitable[bool]]


class Streams:
    def __init__(self, services: Services, places: QueuePlaces) -> None:
        self._services = services
        self._places = places
        self._settings = services.http_settings
        self._broadcaster = Broadcaster(
            services.log,
            services.log_contents,
            archived=ArchivedEvents(
                services.hot_jobs,
                services.history,
                _archive_turns(self._settings),
                url_for=services.url_for,
                most_jobs=self._settings.stream_buffer_events,
            ),
            find_job=partial(current_job, services, with_request=False),
            url_for=services.url_for,
            settings=services.http_settings,
        )
        self._open = OpenStreams(
            self._settings.max_streams, per_owner=services.owner_settings.max_streams
        )
        self._server_end = ServerEnd(
            self._broadcaster.end_streams, are_streams=lambda: self._open.count > 0
        )
        services.progress.listeners.append(self._broadcaster.tell_progress)

    def of_job(
        self, job: Job, *, after: int, may_go_on: MayGoOn, server: tuple[str, int | None] | None
    ) -> EventStream:
        """What is stored of the job after position `after`, until its end.

        Before it begins it may raise TooManyStreams and what `History.read`
        raises; `server` is the address that the request came to.
        """

        @asynccontextmanager
        async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
            with self.place(job.submitted.owner, server):
                async with self.watch(job) as (listener, stored):
                    following = Following(
                        listener,
                        may_go_on=may_go_on,
                        settings=self._settings,
                        ends_with_job=True,
                        tell_place=partial(self._place, job) if job.end is None else None,
                    )
                    yield following.messages(stored, after=after)

        return EventStream(open_stream, send_timeout_s=self._settings.stream_send_timeout_s)

    def of_owner(
        self,
        owner: str,
        only: Filter,
        *,
        after: LogPlace | None,
        may_go_on: MayGoOn,
        server: tuple[str, int | None] | None,
    ) -> EventStream:
        """What is stored of their jobs after the place `after`; None is now.

        Before it begins it may raise TooManyStreams and what
        `Broadcaster.watch_owner` raises.
        """

        @asynccontextmanager
        async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
            async with self.watch_owner(owner, only, after=after, server=server) as listener:
                following = Following(
                    listener,
                    may_go_on=may_go_on,
                    settings=self._settings,
                    ends_with_job=False,
                )
                yield following.messages((), after=listener.after)

        return EventStream(open_stream, send_timeout_s=self._settings.stream_send_timeout_s)

    @asynccontextmanager
    async def watch_owner(
        self,
        owner: str,
        only: Filter,
        *,
        after: LogPlace | None,
        server: tuple[str, int | None] | None,
    ) -> AsyncGenerator[Listener]:
        """A stream as `of_owner` counts it, for whoever writes it in another form.

        Raises TooManyStreams and what `Broadcaster.watch_owner` raises.
        """
        with self.place(owner, server):
            async with self._broadcaster.watch_owner(owner, only, after=after) as listener:
                with self._services.progress.watching():
                    yield listener

    @contextmanager
    def place(self, owner: str, server: tuple[str, int | None] | None) -> Generator[None]:
        """Hold the place of one stream. Raises TooManyStreams."""
        with self._open.hold(owner):
            self._server_end.begin(server)
            yield

    @asynccontextmanager
    async def watch(self, job: Job) -> AsyncGenerator[tuple[Listener, list[LiveEvent]]]:
        """What is told of the job from now on, and what is stored by now.

        Raises LogUnavailable, and what `History.read` raises.
        """
        async with self._listener(job) as listener:
            # Read now: what is stored between the two is not missed.
            yield listener, await self._stored(job.id)

    async def stop(self) -> None:
        self._server_end.stop()
        await self._broadcaster.stop()

    @asynccontextmanager
    async def _listener(self, job: Job) -> AsyncGenerator[Listener]:
        """Raises LogUnavailable."""
        if job.end is None:
            async with self._broadcaster.watch_job(job.id) as listener:
                with self._services.progress.watching(job.id):
                    yield listener
        else:
            listener = Listener(most_events=1)
            listener.end()
            yield listener

    async def _place(self, job: Job) -> bytes | None:
        place = await self._places.of(job)
        return None if place is None else place_message(job.id, place)

    async def _stored(self, job_id: str) -> list[LiveEvent]:
        """Raises what `History.read` raises."""
        url_for = self._services.url_for
        return [
            live_event(event, url_for)
            for event in await self._services.history.read(job_id)
            if is_shown(event)
        ]


def _archive_turns(settings: HttpSettings) -> Turns:
    most = settings.stream_archive_reads
    return Turns(most, per_owner=max(1, most - 1), timeout_s=settings.body_wait_s)
