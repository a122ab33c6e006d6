"""Removal of endpoints that were deleted, and of endpoints that have no database row any more.

`DeletedEndpoints` removes an endpoint that its owner or an administrator deleted. The endpoint
accepts no more jobs. At its `ends_at`, its waiting jobs end with a message, and its running jobs
continue. The pool of the endpoint closes the workers. When neither jobs nor workers are left, the
row is removed, and a little later the consumers.

`RowlessEndpoints` removes the jobs, workers and consumers of an endpoint without a row. It finds
them on the queue and in the cluster. It removes them only if the database has recorded that the
endpoint had a row. Without this record the database may have been lost, or restored from an older
backup. In this case the workers stay, and the jobs wait for the row until their deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

from actors.job_error import give_up_after_error
from actors.scheduler.cluster import ActorUnavailable, Cluster
from actors.scheduler.names import ALL_WORKERS, endpoint_of, endpoint_prefix
from events.bus.queues import JobQueue, QueuedJob
from events.decisions import Expire, FailForRemovedEndpoint, GiveUp
from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from events.log import JobWriter, utc_now
from events.result import FailureCode
from events.store.endpoints import Endpoints
from events.store.records import ENDPOINTS_PERIOD_S, StoredEndpoint
from settings.constant import constant

logger = logging.getLogger(__name__)

_ENDPOINT_GONE_S = constant("ENDPOINT_GONE_S", 60.0)
"""Seconds for which an endpoint without a row is kept, because the row may be added again."""
_LOG = {"action": "delete_endpoint"}


class DeletedEndpoints:
    def __init__(
        self,
        *,
        endpoints: Endpoints,
        queue: JobQueue,
        writer: JobWriter,
        cluster: Cluster,
        period_s: float = ENDPOINTS_PERIOD_S,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writer` must use a `RetryingLog`. `cluster` may be the cluster of any endpoint. All
        processes read the rows every `period_s` seconds, so they may use old rows for this time.
        """
        self._endpoints = endpoints
        self._queue = queue
        self._jobs = JobEnder(queue, writer)
        self._cluster = cluster
        self._period_s = period_s
        self._now = now
        self._clock = clock
        self._going_since: dict[str, float] = {}
        self._removed_at: dict[str, float] = {}

    async def run(self) -> None:
        """Remove endpoints until cancelled."""
        while True:
            try:
                await self.sweep()
            except TRANSIENT as error:
                logger.warning(
                    "deleted endpoints could not be read", extra=_LOG | {"error": str(error)}
                )
            except Exception:
                logger.exception("deleted endpoints could not be read", extra=_LOG)
            await asyncio.sleep(self._period_s)

    async def sweep(self) -> None:
        """Take the next step for each deleted endpoint. Raises DatabaseUnavailable."""
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
        except TRANSIENT as error:
            logger.warning(
                "an endpoint could not be removed yet", extra=fields | {"error": str(error)}
            )
        except Exception:
            logger.exception("an endpoint could not be removed", extra=fields)

    def _is_known(self, since: float) -> bool:
        """Return whether all processes have read the rows since the time `since`."""
        return self._clock() - since > self._period_s

    async def _go_on(self, stored: StoredEndpoint, ends_at: datetime) -> None:
        id = stored.endpoint.id
        if self._now() >= ends_at and not await self._end_waiting(stored):
            return
        if not self._is_known(self._going_since[id]):
            return  # A replica may still accept jobs for the endpoint.
        if await self._queue.queued(id, after=0, most=1):
            return
        if await self._cluster.workers(endpoint_prefix(id)):
            return
        if await self._endpoints.remove(stored):
            self._removed_at[id] = self._clock()
            logger.info("endpoint removed", extra=_LOG | {"endpoint": id})

    async def _forget(self, id: str, *, is_back: bool) -> None:
        """Remove the consumers of a removed endpoint, or keep them if the endpoint exists again."""
        if is_back:
            del self._removed_at[id]
        elif self._is_known(self._removed_at[id]):
            await self._queue.forget(id)
            del self._removed_at[id]

    async def _end_waiting(self, stored: StoredEndpoint) -> bool:
        """End the waiting jobs. Returns False if the row is no longer `stored`."""
        id = stored.endpoint.id

        async def has_changed() -> bool:
            return await self._endpoints.stored_one(id) != stored

        jobs = await self._jobs.end(id, FailForRemovedEndpoint(_message(id)), stays=has_changed)
        if jobs:
            logger.warning(
                "waiting jobs of a deleted endpoint were ended",
                extra=_LOG | {"endpoint": id, "jobs": jobs},
            )
        return jobs is not None


def _message(endpoint: str) -> str:
    return (
        f"The endpoint {endpoint!r} was deleted while this job waited for it. Submit it again to "
        "another endpoint."
    )


class RowlessEndpoints:
    def __init__(
        self,
        *,
        endpoints: Endpoints,
        queue: JobQueue,
        writer: JobWriter,
        cluster: Cluster,
        grace_s: float = _ENDPOINT_GONE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writer` must use a `RetryingLog`. `cluster` may be the cluster of any endpoint. An
        endpoint without a row is kept for `grace_s` seconds.
        """
        self._endpoints = endpoints
        self._queue = queue
        self._jobs = JobEnder(queue, writer)
        self._cluster = cluster
        self._grace_s = grace_s
        self._clock = clock
        self._gone_since: dict[str, float] = {}

    async def run(self) -> None:
        """Remove endpoints until cancelled."""
        while True:
            await self._attempt(self.sweep)
            await asyncio.sleep(self._grace_s / 4)

    async def _attempt(self, step: Callable[[], Awaitable[None]], **fields: str) -> None:
        """Take a step and log its failure. The next sweep repeats the step."""
        try:
            await step()
        except TRANSIENT as error:
            fields |= {"action": "remove_endpoint", "error": str(error)}
            logger.warning("endpoints without rows could not be found", extra=fields)
        except Exception:
            fields |= {"action": "remove_endpoint"}
            logger.exception("an endpoint could not be removed", extra=fields)

    async def sweep(self) -> None:
        """Remove endpoints that have had no row for `grace_s` seconds.

        Raises LogUnavailable, DatabaseUnavailable, ActorUnavailable.
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
        """End the jobs, then remove the workers. In this order, no attempt fails by the removal."""
        jobs = await self._end_jobs(endpoint, _give_up(endpoint))
        if jobs is None:
            return  # The endpoint has a row again, so it stays.
        workers = await self._cluster.workers(endpoint_prefix(endpoint))
        for worker in workers:
            await self._cluster.remove(worker)
        await self._queue.forget(endpoint)
        if jobs or workers:
            fields = {"endpoint": endpoint, "jobs": jobs, "workers": len(workers)}
            logger.warning(
                "an endpoint without a row is removed",
                extra={"action": "remove_endpoint", **fields},
            )

    async def _expire(self, endpoint: str) -> None:
        """End the expired jobs of an endpoint that no dispatcher serves."""
        jobs = await self._end_jobs(endpoint, Expire(utc_now(), _unknown_message(endpoint)))
        if jobs is None:
            return  # The endpoint has a row again, so it stays.
        fields = {"action": "unknown_endpoint", "endpoint": endpoint, "jobs": jobs}
        logger.warning("an endpoint has no row, but was not removed", extra=fields)

    async def _end_jobs(self, endpoint: str, command: GiveUp | Expire) -> int | None:
        """End the jobs. Returns their number, or None if the row exists again."""

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
    return f"The service has no endpoint {endpoint!r} any more. Report this to the operator."


_AT_ONCE = 32
TRANSIENT = (LogUnavailable, ReadTimeout, DatabaseUnavailable, ActorUnavailable)
"""Errors after which the next sweep repeats the step."""


class JobEnder:
    """Ends the jobs on the queue of an endpoint."""

    def __init__(self, queue: JobQueue, writer: JobWriter) -> None:
        """`writer` must use a `RetryingLog`."""
        self._queue = queue
        self._writer = writer

    async def end(
        self,
        endpoint: str,
        command: GiveUp | FailForRemovedEndpoint | Expire,
        *,
        stays: Callable[[], Awaitable[bool]],
    ) -> int | None:
        """End the jobs. Returns the number of ended jobs, or None as soon as `stays` returns True.

        Raises LogUnavailable, ReadTimeout, and the errors of `stays`.
        """
        after = ended = 0
        while page := await self._queue.queued(endpoint, after=after, most=_AT_ONCE):
            if await stays():
                return None
            ends = await asyncio.gather(*(self._end_job(endpoint, job, command) for job in page))
            after, ended = page[-1].position, ended + sum(ends)
        return None if await stays() else ended

    async def _end_job(
        self, endpoint: str, queued: QueuedJob, command: GiveUp | FailForRemovedEndpoint | Expire
    ) -> bool:
        """End one job. Returns whether its entry was removed."""
        if isinstance(command, Expire) and queued.deadline > command.now:
            return False
        try:
            job = await self._writer.load(queued.job_id)
            if job is not None:
                job = (await self._writer.execute(command, job)).job
            if job is not None and job.end is None:
                return False
        except TRANSIENT:
            raise
        except Exception as error:  # noqa: BLE001 - `give_up_after_error` logs it
            writer, action = self._writer, "remove_endpoint"
            if not await give_up_after_error(queued.job_id, error, writer=writer, action=action):
                return False
        await self._queue.remove(endpoint, queued.lane, queued.job_id)
        return True
