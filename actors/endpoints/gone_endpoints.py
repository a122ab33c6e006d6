"""GoneEndpoints: what is left of endpoints whose rows are gone, whoever dispatched them.

Their jobs end, and so do their workers and the readers of their lanes. What is left is found where
it is: on the queue and in the cluster. So it does not matter which dispatcher knew the endpoint.

That is for endpoints of which the database knows that they had a row. A database that was lost, or
restored from a backup that is older than an endpoint, does not say that anybody removed it: then
workers stay, and its jobs wait for the row, each up to its deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from actors.dispatch.cluster import Cluster
from actors.dispatch.names import ALL_WORKERS, endpoint_of, endpoint_prefix
from actors.endpoints.ended_jobs import PASSING, EndedJobs
from events.decisions import Expire, GiveUp
from events.log import JobWriter, utc_now
from events.queue import JobQueue
from events.result import FailureCode
from events.store.endpoints import Endpoints

logger = logging.getLogger(__name__)


class GoneEndpoints:
    def __init__(
        self,
        *,
        endpoints: Endpoints,
        queue: JobQueue,
        writer: JobWriter,
        cluster: Cluster,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writer`: on a log that waits out outages. `cluster`: of any endpoint.

        `grace_s`: how long an endpoint is left alone in case its row comes back.
        """
        self._endpoints = endpoints
        self._queue = queue
        self._jobs = EndedJobs(queue, writer)
        self._cluster = cluster
        self._grace_s = grace_s
        self._clock = clock
        self._gone_since: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._attempt(self.sweep)
            await asyncio.sleep(self._grace_s / 4)

    async def _attempt(self, step: Callable[[], Awaitable[None]], **fields: str) -> None:
        """What fails is tried in the next sweep, and holds up no other endpoint."""
        try:
            await step()
        except PASSING as error:
            fields |= {"action": "remove_endpoint", "error": str(error)}
            logger.warning("could not look for endpoints that are gone", extra=fields)
        except Exception:
            fields |= {"action": "remove_endpoint"}
            logger.exception("endpoint not removed", extra=fields)

    async def sweep(self) -> None:
        """Remove what has been gone for the grace period.

        Raises LogUnavailable, DatabaseUnavailable, ActorUnavailable where it cannot be told.
        """
        workers = await self._cluster.workers(ALL_WORKERS)
        left = await self._queue.endpoints() | {endpoint_of(worker) for worker in workers}
        gone = left - {endpoint.id for endpoint in await self._endpoints.all()}
        noted = await self._endpoints.noted()
        now = self._clock()
        self._gone_since = {id: self._gone_since.get(id, now) for id in sorted(gone)}
        for endpoint, since in self._gone_since.items():
            if now - since >= self._grace_s:
                settle = self._remove if endpoint in noted else self._expire
                await self._attempt(partial(settle, endpoint), endpoint=endpoint)

    async def _remove(self, endpoint: str) -> None:
        """Jobs first: one that runs has ended before its worker goes, and is no failed attempt."""
        jobs = await self._end_jobs(endpoint, _give_up(endpoint))
        if jobs is None:
            return  # it is back
        workers = await self._cluster.workers(endpoint_prefix(endpoint))
        for worker in workers:
            await self._cluster.remove(worker)
        await self._queue.forget(endpoint)
        if jobs or workers:
            fields = {"endpoint": endpoint, "jobs": jobs, "workers": len(workers)}
            logger.warning("endpoint is gone", extra={"action": "remove_endpoint", **fields})

    async def _expire(self, endpoint: str) -> None:
        """No dispatcher has its queue, so nobody else ends what has run out of time."""
        jobs = await self._end_jobs(endpoint, Expire(utc_now(), _unknown_message(endpoint)))
        if jobs is None:
            return  # it is back
        fields = {"action": "unknown_endpoint", "endpoint": endpoint, "jobs": jobs}
        logger.warning("endpoint has no row, and nobody removed it", extra=fields)

    async def _end_jobs(self, endpoint: str, command: GiveUp | Expire) -> int | None:
        """How many ended; None if the endpoint is back meanwhile."""

        async def is_back() -> bool:
            return await self._endpoints.get(endpoint) is not None

        return await self._jobs.end(endpoint, command, stays=is_back)


def _give_up(endpoint: str) -> GiveUp:
    return GiveUp(
        f"The endpoint {endpoint!r} was removed before this job had ended. Submit it again to "
        "another endpoint.",
        FailureCode.ENDPOINT_REMOVED,
    )


def _unknown_message(endpoint: str) -> str:
    return f"The service does not know the endpoint {endpoint!r} any more; tell the operator."
