"""The projection: folds the log into the SQL read model.

The offset of the projection is stored in the same transaction as the database rows. So each event
is folded once and in order, even while two projections run during a deploy.

If the projection cannot project an event, it records the job of the event as blocked
(`events.store.read_model`), and continues with the other jobs. At each start, and periodically, the
events of blocked jobs are read from the log again. A version that can project them then unblocks
the job.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from actors.connections import (
    Connections,
    connect,
    open_history,
    open_images,
    open_prepared_database,
    open_removal,
)
from actors.upkeep.historian import Historian
from actors.upkeep.janitor import Janitor
from engine.interface import is_machine_error
from events.bus.health import stored_after, stream_states, warn_if_size_differs
from events.bus.queues import REQUEUE_PERIOD_S
from events.bus.request_reply import answer_metrics
from events.delivery import longest_delivery_s
from events.errors import DatabaseUnavailable, JobUnreadable, LogUnavailable, ReadTimeout
from events.log import EventLog, EventReader
from events.retry import keep_trying
from events.store.database import Database
from events.store.ended_jobs import EndedJobs
from events.store.leases import Leases, lease_holder
from events.store.read_model import BlockedJob, FoldedEvent, ReadModel
from events.store.uploads import Uploads
from events.types import Event
from settings.settings import Settings
from storage.images import ImageStore
from telemetry.exporter import JobTraces, open_exporter
from telemetry.exposition import ProcessMetrics
from telemetry.projection_metrics import JobMetrics, LogMetrics

logger = logging.getLogger(__name__)

_POLL_S = 5.0
_GATHER_S = 0.1
"""Seconds for which the projection waits for further events of the same transaction."""
_FULL = 400
"""With this many events, the projection does not wait for further events."""
_PAGE = 500
_PASSING = (DatabaseUnavailable, LogUnavailable, ReadTimeout)
"""Errors that say nothing about a job."""


class Projection:
    """Folds the log into the read model. It has no durable consumer, as the database stores the
    offset.
    """

    def __init__(
        self, *, log: EventLog, read_model: ReadModel, catch_up_period_s: float = REQUEUE_PERIOD_S
    ) -> None:
        """Blocked jobs are read again every `catch_up_period_s` seconds."""
        self._log = log
        self._read_model = read_model
        self._catch_up_period_s = catch_up_period_s
        self._hopeless: set[tuple[str, int]] = set()
        """Id and blocked position of each job that this version cannot project."""

    async def run(self) -> None:
        """Project until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._consume())
            group.create_task(self._keep_catching_up())

    async def _consume(self) -> None:
        while True:
            await keep_trying(
                self._project,
                on=DatabaseUnavailable,
                first_pause_s=1,
                longest_pause_s=1,
                fields={"action": "project"},
            )

    async def _project(self) -> None:
        """Project events from the stored offset on, until another process has moved the offset."""
        offset = await self._read_model.offset()
        async with self._log.reader(after=offset) as reader:
            while True:
                events = await self._next(reader)
                if not events:
                    continue
                if not await self._apply(events, expected=offset):
                    return
                offset = events[-1].position

    async def _next(self, reader: EventReader) -> list[Event]:
        """Return the next events in log order, or none if no event arrived in `_POLL_S` seconds."""
        events = await reader.next(_POLL_S)
        if 0 < len(events) < _FULL:
            await asyncio.sleep(_GATHER_S)
            events += await reader.next(0)
        return events

    async def _apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """Project some events. An event that cannot be projected blocks only its job.

        Returns False if another process has moved the offset. Raises DatabaseUnavailable, also
        after an error of the machine.
        """
        try:
            return await self._read_model.apply(events, expected=expected)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            if is_machine_error(error):
                raise DatabaseUnavailable(f"the machine failed: {error}") from error
            if len(events) == 1:
                fields = {"action": "project", "job_id": events[0].job_id}
                logger.exception("an event could not be projected", extra=fields)
                why = f"the database cannot store the event ({type(error).__name__})"
                return await self._read_model.block_at(events[0], why, expected=expected)
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
                logger.warning("the blocked jobs could not be checked", extra=fields)
            await asyncio.sleep(self._catch_up_period_s * random.uniform(0.8, 1.2))

    async def _catch_up(self) -> None:
        at = 0
        while blocked := await self._read_model.blocked.page(after=at, limit=_PAGE):
            for job in blocked:
                if (job.job_id, job.position) not in self._hopeless:
                    await self._catch_up_with(job)
            at = blocked[-1].position

    async def _catch_up_with(self, job: BlockedJob) -> None:
        fields = {"action": "catch_up", "job_id": job.job_id}
        try:
            history = await self._log.read(job.job_id)
            if await self._read_model.catch_up(job.job_id, history):
                logger.info("a blocked job continues", extra=fields)
        except _PASSING:
            raise
        except Exception as error:
            if is_machine_error(error):
                logger.warning("the machine failed", extra={**fields, "error": str(error)})
                return
            self._hopeless.add((job.job_id, job.position))
            if not isinstance(error, JobUnreadable):
                logger.exception("a blocked job could not be projected", extra=fields)


async def run(settings: Settings) -> None:
    """Run the projection, the janitor and the historian, until cancelled."""
    connections = connect(settings.log, "projection")
    database = await open_prepared_database(settings.stores)
    images = open_images(settings.stores)
    process = ProcessMetrics("projection")
    notes = [JobMetrics(process.registry).note]

    def on_folded(folded: Sequence[FoldedEvent]) -> None:
        for note in notes:
            note(folded)

    read_model = ReadModel(database, on_folded=on_folded)
    process.add(
        LogMetrics(
            read_model,
            states=lambda: stream_states(connections.bus),
            stored_after=lambda offset: stored_after(connections.bus, offset),
        ).collect
    )
    projection = Projection(
        log=connections.log,
        read_model=read_model,
    )
    janitor = _make_janitor(settings, connections, database, images)
    historian = _make_historian(settings, connections, database, images)
    async with asyncio.TaskGroup() as group:
        group.create_task(warn_if_size_differs(connections.bus, configured=settings.log.max_bytes))
        group.create_task(answer_metrics(connections.bus, process.encoded))
        if (exporter := open_exporter(settings.telemetry, "projection")) is not None:
            traces = JobTraces(connections.log, exporter)
            notes.append(traces.note)
            group.create_task(traces.run())
            group.create_task(exporter.run())
        group.create_task(projection.run())
        group.create_task(janitor.run())
        group.create_task(historian.run())


def _make_janitor(
    settings: Settings, connections: Connections, database: Database, images: ImageStore
) -> Janitor:
    log, deliveries, read_model = connections.log, connections.deliveries, ReadModel(database)
    ended_jobs, uploads = EndedJobs(database), Uploads(database)
    history = open_history(database, images, log=log, deliveries=deliveries)
    return Janitor(
        holder=lease_holder(),
        leases=Leases(database),
        log=log,
        deliveries=history.delivery_log,
        read_model=read_model,
        ended_jobs=ended_jobs,
        uploads=uploads,
        images=images,
        removal=open_removal(database, images, read_model, log=log, deliveries=deliveries),
        settings=settings.retention,
        longest_job_s=settings.dispatch.job_timeout_s,
        longest_delivery_s=longest_delivery_s(delays_s=settings.callbacks.delays_s),
    )


def _make_historian(
    settings: Settings, connections: Connections, database: Database, images: ImageStore
) -> Historian:
    return Historian(
        holder=lease_holder(),
        leases=Leases(database),
        log=connections.log,
        deliveries=connections.deliveries,
        images=images,
        ended_jobs=EndedJobs(database),
        hot_s=settings.log.hot_s,
    )
