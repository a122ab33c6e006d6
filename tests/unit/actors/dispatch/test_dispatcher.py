"""Which endpoints are dispatched, by which of several dispatchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from actors.dispatch.dispatcher import Dispatcher
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.leases import Leases
from events.store.records import Endpoint, StoredEndpoint
from events.store.tables import ENDPOINTS
from tests.support.database import database_in
from tests.support.polling import eventually

DEFAULT = Endpoint("default", jobs_per_worker=7)


class FakeEndpointDispatcher:
    """Runs until it is stopped, or told to fail."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.is_running = False
        self.failing = asyncio.Event()
        self.status = self

    async def tell(self) -> dict[str, Any]:
        return {"workers": [], "is": self.endpoint.id}

    async def run(self) -> None:
        self.is_running = True
        try:
            await self.failing.wait()
            raise RuntimeError("something unforeseen")
        finally:
            self.is_running = False


class FakeRemoval:
    """Notes whether it is at work."""

    def __init__(self) -> None:
        self.is_running = False

    async def run(self) -> None:
        self.is_running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_running = False


class Bench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.endpoints = Endpoints(database)
        self.leases = Leases(database)
        self.opened: list[FakeEndpointDispatcher] = []
        self.deleted: Any = FakeRemoval()
        self.gone: Any = FakeRemoval()

    @asynccontextmanager
    async def dispatching(self, holder: str = "one") -> AsyncIterator[Dispatcher]:
        dispatcher = Dispatcher(
            holder=holder,
            leases=self.leases,
            endpoints=self.endpoints,
            default_endpoint=DEFAULT,
            open_endpoint=self._open,
            deleted_endpoints=self.deleted,
            gone_endpoints=self.gone,
            lease_s=1.0,
            period_s=0.01,
        )
        task = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})

    def _open(self, endpoint: Endpoint) -> Any:
        self.opened.append(FakeEndpointDispatcher(endpoint))
        return self.opened[-1]

    async def remove_row(self, id: str) -> None:
        """As an operator does."""
        await self.database.execute(sa.delete(ENDPOINTS).where(ENDPOINTS.c.id == id))

    def running(self) -> list[str]:
        return sorted(each.endpoint.id for each in self.opened if each.is_running)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(database)


async def test_the_default_endpoint_is_put_and_every_row_dispatched(bench: Bench) -> None:
    await bench.endpoints.put(Endpoint("fast"))
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default", "fast"])
    assert await bench.endpoints.get("default") == DEFAULT
    assert bench.running() == []


async def test_what_it_says_of_every_endpoint_is_said_together(bench: Bench) -> None:
    await bench.endpoints.put(Endpoint("fast"))
    async with bench.dispatching() as dispatcher:
        await eventually(lambda: bench.running() == ["default", "fast"])
        statuses = await dispatcher.statuses()
    assert {id: status["is"] for id, status in statuses.items()} == {
        "default": "default",
        "fast": "fast",
    }
    assert await dispatcher.statuses() == {}


async def test_the_default_endpoint_keeps_what_its_row_was_given(bench: Bench) -> None:
    given = replace(DEFAULT, max_workers=4, jobs_per_worker=2)
    row = StoredEndpoint(endpoint=given, revision=5, given=frozenset({"max_workers"}))
    assert await bench.endpoints.add(row)
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default"])
    settled = await bench.endpoints.stored_one("default")
    assert settled == replace(row, endpoint=replace(DEFAULT, max_workers=4), revision=6)


async def test_a_row_that_changed_is_dispatched_anew(bench: Bench) -> None:
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default"])
        changed = Endpoint("default", jobs_per_worker=3)
        await bench.endpoints.put(changed)
        await eventually(lambda: bench.opened[-1].endpoint == changed and bench.running())
        assert bench.running() == ["default"]


async def test_a_row_that_is_gone_is_dispatched_no_more(
    bench: Bench,
) -> None:
    await bench.endpoints.put(Endpoint("fast"))
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default", "fast"])
        await bench.remove_row("fast")
        await eventually(lambda: bench.running() == ["default"])
        assert (bench.deleted.is_running, bench.gone.is_running) == (True, True)
    assert (bench.deleted.is_running, bench.gone.is_running) == (False, False)


async def test_an_endpoint_is_noted_before_it_is_dispatched(bench: Bench) -> None:
    await bench.endpoints.put(Endpoint("fast"))
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default", "fast"])
        assert await bench.endpoints.noted() == {"default", "fast"}
        await bench.remove_row("fast")
        await bench.endpoints.put(Endpoint("slow"))
        await eventually(lambda: bench.running() == ["default", "slow"])
    assert await bench.endpoints.noted() == {"default", "fast", "slow"}


async def test_only_the_holder_of_the_lease_dispatches(bench: Bench) -> None:
    async with bench.dispatching("one"):
        await eventually(lambda: bench.running() == ["default"])
        async with bench.dispatching("two"):
            await asyncio.sleep(0.2)
            assert len(bench.opened) == 1


async def test_another_takes_over_when_the_lease_runs_out(bench: Bench) -> None:
    async with bench.dispatching("one"):
        await eventually(lambda: bench.running() == ["default"])
    async with bench.dispatching("two"):
        await eventually(lambda: bench.running() == ["default"], within_s=10)
    assert len(bench.opened) == 2


async def test_an_endpoint_whose_loop_ended_begins_again(bench: Bench) -> None:
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default"])
        bench.opened[0].failing.set()
        await eventually(lambda: len(bench.opened) == 2 and bench.running() == ["default"])
