"""DeletedEndpoints: those that their owner or an administrator deleted, until their rows are gone.

Such an endpoint takes no more jobs and works off those that it has. When its time is over, those
that still wait end with a message; what runs by then runs on. Its pool closes its workers
(`WorkerPool`), and once neither jobs nor workers are left, so does its row go, and the readers of
its lanes a little later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writer`: on a log that waits out outages. `cluster`: of any endpoint.

        `period_s`: also how long others go on by a row that they have read.
        """
        self._endpoints = endpoints
        self._queue = queue
        self._jobs = EndedJobs(queue, writer)
        self._cluster = cluster
        self._period_s = period_s
        self._now = now
        self._clock = clock
        self._going_since: dict[str, float] = {}
        self._removed_at: dict[str, float] = {}

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
        rows = {stored.endpoint.id: stored for stored in await self._endpoints.stored()}
        ends = {id: stored.endpoint.ends_at for id, stored in rows.items()}
        going = {id: ends_at for id, ends_at in ends.items() if ends_at is not None}
        now = self._clock()
        self._going_since = {id: self._going_since.get(id, now) for id in going}
        for id in list(self._removed_at):
            await self._attempt(id, partial(self._forget, id, is_back=id in rows))
        for id, ends_at in going.items():
            await self._attempt(id, partial(self._go_on, rows[id], ends_at))

    async def _attempt(self, id: str, step: Callable[[], Awaitable[None]]) -> None:
        fields = _LOG | {"endpoint": id}
        try:
            await step()
        except PASSING as error:
            logger.warning("endpoint stays", extra=fields | {"error": str(error)})
        except Exception:
            logger.exception("endpoint not removed", extra=fields)

    def _is_known(self, since: float) -> bool:
        """Whether everybody knows by now what the row has said since then."""
        return self._clock() - since > self._period_s

    async def _go_on(self, stored: StoredEndpoint, ends_at: datetime) -> None:
        id = stored.endpoint.id
        if self._now() >= ends_at and not await self._end_waiting(stored):
            return
        if not self._is_known(self._going_since[id]):
            return  # a replica may still take jobs for it
        if await self._queue.queued(id, after=0, most=1):
            return
        if await self._cluster.workers(endpoint_prefix(id)):
            return
        if await self._endpoints.remove(stored):
            self._removed_at[id] = self._clock()
            logger.info("endpoint removed", extra=_LOG | {"endpoint": id})

    async def _forget(self, id: str, *, is_back: bool) -> None:
        """A server of NATS has so many consumers, and whoever makes and deletes takes no more."""
        if is_back:
            del self._removed_at[id]
        elif self._is_known(self._removed_at[id]):
            await self._queue.forget(id)
            del self._removed_at[id]

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
