"""Dispatchers of fake endpoints, on rows and leases in a real database that can fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa

from actors.roles.dispatcher import Dispatcher
from events.errors import DatabaseUnavailable
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.leases import Leases
from events.store.records import Endpoint, StoredEndpoint
from events.store.tables import ENDPOINTS
from tests.support.database import Hanging
from tests.support.polling import running

LEASE_S = 2.0
DEFAULT = Endpoint("default", jobs_per_worker=7)


class FakeEndpointDispatcher:
    """A dispatcher that runs until it is stopped, which takes a moment, or `failing` is set."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.is_running = False
        self.failing = asyncio.Event()
        self.status = self

    async def describe(self) -> dict[str, Any]:
        return {"workers": [], "is": self.endpoint.id}

    async def run(self) -> None:
        self.is_running = True
        try:
            await self.failing.wait()
            raise RuntimeError("something unforeseen")
        finally:
            await asyncio.sleep(0.02)
            self.is_running = False


class FakeRemoval:
    """A removal that counts its runs. Its end may hang."""

    def __init__(self) -> None:
        self.running = 0
        self.ending = Hanging()

    async def run(self) -> None:
        self.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.running -= 1
            await self.ending.wait()


class AwayLeases(Leases):
    """Leases whose database can be unavailable, or hang."""

    is_away = False
    refused: set[str]
    """Holders whose request was refused."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.hanging = Hanging()
        self.asked: Counter[str] = Counter()
        """How often each holder asked for the lease."""

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> bool:
        self.asked[holder] += 1
        await self.hanging.wait()
        if self.is_away:
            self.refused.add(holder)
            raise DatabaseUnavailable("away")
        return await super().acquire(name, holder, ttl_s=ttl_s)


class AwayEndpoints(Endpoints):
    """Endpoints whose database can be unavailable, or hang."""

    is_away = False

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.hanging = Hanging()

    async def stored(self, *, owner: str | None = None) -> list[StoredEndpoint]:
        await self.hanging.wait()
        if self.is_away:
            raise DatabaseUnavailable("away")
        return await super().stored(owner=owner)


class DispatcherBench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.endpoints = AwayEndpoints(database)
        self.leases = AwayLeases(database)
        self.left: list[str] = []
        self.opened: list[FakeEndpointDispatcher] = []
        self.deleted: Any = FakeRemoval()
        self.gone: Any = FakeRemoval()

    @asynccontextmanager
    async def dispatching(self, holder: str = "one") -> AsyncIterator[Dispatcher]:
        dispatcher = Dispatcher(
            holder=holder,
            leases=self.leases,
            endpoints=self.endpoints,
            configured=[DEFAULT],
            open_endpoint=self._open,
            deleted_endpoints=self.deleted,
            gone_endpoints=self.gone,
            lease_s=LEASE_S,
            period_s=0.01,
            on_left=self.left.append,
        )
        async with running(dispatcher.run()):
            yield dispatcher

    def _open(self, endpoint: Endpoint) -> Any:
        self.opened.append(FakeEndpointDispatcher(endpoint))
        return self.opened[-1]

    async def remove_row(self, id: str) -> None:
        """Remove the row, as an operator does."""
        await self.database.execute(sa.delete(ENDPOINTS).where(ENDPOINTS.c.id == id))

    def database_is_away(self, *, is_away: bool) -> None:
        self.leases.refused = set()
        self.endpoints.is_away = self.leases.is_away = is_away

    def running(self) -> list[str]:
        """Return the ids of the endpoints that some dispatcher runs, twice if two do."""
        return sorted(each.endpoint.id for each in self.opened if each.is_running)
