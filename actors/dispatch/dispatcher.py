"""Dispatcher: gives what waits on the queue to workers that have room.

One actor, one `EndpointDispatcher` per endpoint. Several of them divide the endpoints (`Shares`).
What is not an endpoint's own is done by the one that holds a lease in the database; where there is
one dispatcher, it is at work only while it holds that.

Two may dispatch an endpoint for a while: of a job that both dispatch one start is stored, since
each states how many attempts its dispatcher knew of.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, TypeVar

from actors.dispatch.endpoint import EndpointDispatcher
from actors.endpoints.deleted_endpoints import DeletedEndpoints
from actors.endpoints.gone_endpoints import GoneEndpoints
from actors.upkeep.shares import Shares
from events.errors import DatabaseUnavailable
from events.store.endpoints import Endpoints
from events.store.leases import Leases, answered
from events.store.records import Endpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LEASE_NAME = "dispatcher"


class Dispatcher:
    """The role: follows the rows of those endpoints that are ours."""

    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        endpoints: Endpoints,
        default_endpoint: Endpoint,
        open_endpoint: Callable[[Endpoint], EndpointDispatcher],
        deleted_endpoints: DeletedEndpoints,
        gone_endpoints: GoneEndpoints,
        lease_s: float,
        period_s: float,
        shares: Shares | None = None,
        on_left: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`default_endpoint`: from the settings, which its row follows at every start, but for what
        it was given.

        `deleted_endpoints`, `gone_endpoints`: what becomes of endpoints that are to go, and of
        those that have no row any more.

        `shares`: of the endpoints, named by their ids; None where no other process dispatches any.
        `on_left` is told of an endpoint that is ours no more.
        """
        self._holder = holder
        self._leases = leases
        self._endpoints = endpoints
        self._default_endpoint = default_endpoint
        self._open_endpoint = open_endpoint
        self._removals = (deleted_endpoints, gone_endpoints)
        self._removing: list[asyncio.Task[None]] = []
        self._lease_s = lease_s
        self._period_s = period_s
        self._shares = shares
        self._on_left = on_left
        self._lease_until = 0.0
        self._default_is_put = False
        self._rows: Mapping[str, Endpoint] = {}
        """By id, as they were read last."""
        self._running: dict[str, tuple[EndpointDispatcher, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                began_at = time.monotonic()
                await self._settle()
                took_s = time.monotonic() - began_at
                await asyncio.sleep(min(self._period_s, self._lease_s / 3 - took_s))
        finally:
            self._cancel_removing()
            await self._leave_all()
            await asyncio.gather(*self._removing, return_exceptions=True)
            if self._shares is not None:
                await self._shares.release()

    async def status(self, endpoint_id: str) -> Mapping[str, Any] | None:
        """What is known of an endpoint (`EndpointStatus.tell`); None where it is not ours.

        Raises LogUnavailable, ReadTimeout.
        """
        found = self._running.get(endpoint_id)
        return None if found is None else await found[0].status.tell()

    async def statuses(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each endpoint that is ours. Raises LogUnavailable, ReadTimeout."""
        running = list(self._running.items())
        return {id: await dispatcher.status.tell() for id, (dispatcher, _) in running}

    async def _has_lease(self) -> bool:
        """Of what is not an endpoint's own. While the database is not available, a lease that has
        not run out is still held.
        """
        asked_at = time.monotonic()
        question = self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=self._lease_s)
        try:
            if self._shares is None:
                lasts_s = self._lease_until - asked_at
                mine = await answered(question, within_s=max(lasts_s, self._lease_s / 3))
            else:
                mine = await self._ask(question)
        except DatabaseUnavailable:
            return time.monotonic() < self._lease_until
        self._lease_until = asked_at + self._lease_s if mine else 0.0
        return mine

    async def _settle(self) -> None:
        is_first = await self._has_lease()
        if not is_first:
            self._cancel_removing()
        if not is_first and self._shares is None:
            await self._leave_all()
            return
        are_read = await self._read_rows(is_first=is_first)
        ours = await self._ours()
        for endpoint_id in self._running.keys() - ours:
            await self._leave(endpoint_id)
        if are_read:
            await self._follow({id: row for id, row in self._rows.items() if id in ours})
        if are_read and is_first and all(task.done() for task in self._removing):
            self._removing = [asyncio.create_task(each.run()) for each in self._removals]

    async def _read_rows(self, *, is_first: bool) -> bool:
        """False while the database is not available: they stay as they were."""
        try:
            if is_first and not self._default_is_put:
                await self._ask(self._endpoints.settle(self._default_endpoint))
                self._default_is_put = True
            rows = await self._ask(self._endpoints.all())
        except DatabaseUnavailable:
            return False
        self._rows = {endpoint.id: endpoint for endpoint in rows}
        return True

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Wait for as long as there is time left to renew the leases of endpoints."""
        if self._shares is not None:
            return await answered(question, within_s=self._shares.spare_s())
        lasts_s = self._lease_until - time.monotonic()
        return await answered(question, within_s=lasts_s - self._lease_s / 3)

    async def _ours(self) -> Collection[str]:
        if self._shares is None:
            return self._rows.keys()
        return await self._shares.settle(self._rows, self._leave)

    async def _follow(self, rows: Mapping[str, Endpoint]) -> None:
        """`rows`: of those that are ours."""
        try:
            # Before anything is made for them: it is found by this once the row is removed.
            await self._ask(self._endpoints.note(rows.keys() - self._running.keys()))
        except DatabaseUnavailable:
            return
        for endpoint_id, (dispatcher, task) in list(self._running.items()):
            if task.done():
                # One endpoint's trouble is not the others': it begins again.
                logger.error("endpoint loop ended", exc_info=task.exception())
            if task.done() or rows.get(endpoint_id) != dispatcher.endpoint:
                await self._stop(endpoint_id)
        for endpoint_id, endpoint in rows.items():
            if endpoint_id not in self._running:
                dispatcher = self._open_endpoint(endpoint)
                task = asyncio.create_task(dispatcher.run(), name=endpoint_id)
                self._running[endpoint_id] = (dispatcher, task)

    async def _leave_all(self) -> None:
        await asyncio.gather(*map(self._leave, list(self._running)))

    def _cancel_removing(self) -> None:
        """They are not waited for, since they may wait for the database."""
        for task in self._removing:
            if not task.cancelling():
                task.cancel()

    async def _leave(self, endpoint_id: str) -> None:
        """It is ours no more, or was not; what runs by then runs on."""
        if endpoint_id in self._running:
            await self._stop(endpoint_id)
            self._on_left(endpoint_id)

    async def _stop(self, endpoint_id: str) -> None:
        _, task = self._running.pop(endpoint_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
