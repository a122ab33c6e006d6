"""DeletedEndpoints: those that their owner or an administrator deleted, until their rows are gone.

Such an endpoint takes no more jobs and works off those that it has. When its time is over, those
that still wait end with a message; what runs by then runs on. Its pool closes its workers
(`WorkerPool`), and once neither jobs nor workers are left, so does its row go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from actors.dispatch.cluster import Cluster
from actors.dispatch.names import endpoint_prefix
from actors.endpoints.ended_jobs import PASSING, EndedJobs
from events.decisions import Dismiss
from events.log import JobWriter, utc_now
from events.queue import JobQueue
from events.store.endpoints import Endpoints
from events.store.records import StoredEndpoint

logger = logging.getLogger(__name__)

_LOG = {"action": "delete_endpoint"}


class DeletedEndpoints:
    def __init__(
        self,
        *,
        endpoints: Endpoints,
        queue: JobQueue,
        writer: JobWriter,
        cluster: Cluster,
        period_s: float,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`writer`: on a log that waits out outages. `cluster`: of any endpoint."""
        self._endpoints = endpoints
        self._queue = queue
        self._jobs = EndedJobs(queue, writer)
        self._cluster = cluster
        self._period_s = period_s
        self._now = now

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.sweep()
            except PASSING as error:
                logger.warning("could not look for them", extra=_LOG | {"error": str(error)})
            except Exception:
                logger.exception("endpoints not looked at", extra=_LOG)
            await asyncio.sleep(self._period_s)

    async def sweep(self) -> None:
        """Go on with each of them. Raises LogUnavailable, DatabaseUnavailable, ActorUnavailable
        where it cannot be told which there are; trouble with one holds up no other.
        """
        for stored in await self._endpoints.stored():
            if stored.endpoint.ends_at is not None:
                fields = _LOG | {"endpoint": stored.endpoint.id}
                try:
                    await self._go_on(stored, stored.endpoint.ends_at)
                except PASSING as error:
                    logger.warning("endpoint stays", extra=fields | {"error": str(error)})
                except Exception:
                    logger.exception("endpoint not removed", extra=fields)

    async def _go_on(self, stored: StoredEndpoint, ends_at: datetime) -> None:
        id = stored.endpoint.id
        if self._now() >= ends_at and not await self._end_waiting(stored):
            return
        if await self._queue.queued(id, after=0, most=1):
            return
        if await self._cluster.workers(endpoint_prefix(id)):
            return
        if await self._endpoints.remove(stored):
            logger.info("endpoint removed", extra=_LOG | {"endpoint": id})

    async def _end_waiting(self, stored: StoredEndpoint) -> bool:
        """False if the row has changed since it was read."""
        id = stored.endpoint.id

        async def has_changed() -> bool:
            return await self._endpoints.stored_one(id) != stored

        jobs = await self._jobs.end(id, Dismiss(_message(id)), stays=has_changed)
        if jobs:
            logger.warning("waiting jobs ended", extra=_LOG | {"endpoint": id, "jobs": jobs})
        return jobs is not None


def _message(endpoint: str) -> str:
    return (
        f"The endpoint {endpoint!r} was deleted while this job waited for it. Submit it again to "
        "another endpoint."
    )
