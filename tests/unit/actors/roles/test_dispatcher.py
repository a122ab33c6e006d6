"""Which endpoints are dispatched, by the one dispatcher that there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from actors.roles.dispatcher import Dispatcher
from events.store.database import Database
from events.store.records import Endpoint, StoredEndpoint
from tests.support.polling import eventually
from tests.support.scheduler.dispatchers import DEFAULT, LEASE_S, DispatcherBench


@pytest.fixture
def bench(database: Database) -> DispatcherBench:
    return DispatcherBench(database)


@pytest.fixture
async def dispatching(bench: DispatcherBench) -> AsyncIterator[Dispatcher]:
    """The default endpoint is dispatched."""
    async with bench.dispatching() as dispatcher:
        await eventually(lambda: bench.running() == ["default"])
        yield dispatcher


async def test_the_default_endpoint_is_put_and_every_row_dispatched(bench: DispatcherBench) -> None:
    await bench.endpoints.put(Endpoint("fast"))
    async with bench.dispatching() as dispatcher:
        await eventually(lambda: bench.running() == ["default", "fast"])
        statuses = await dispatcher.statuses()
    assert await bench.endpoints.get("default") == DEFAULT
    assert bench.running() == []
    said = {id: status["is"] for id, status in statuses.items()}
    assert said == {"default": "default", "fast": "fast"}
    assert await dispatcher.statuses() == {}


async def test_the_default_endpoint_keeps_what_its_row_was_given(bench: DispatcherBench) -> None:
    given = replace(DEFAULT, max_workers=4, jobs_per_worker=2)
    row = StoredEndpoint(endpoint=given, revision=5, given=frozenset({"max_workers"}))
    assert await bench.endpoints.add(row)
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default"])
    settled = await bench.endpoints.stored_one("default")
    assert settled == replace(row, endpoint=replace(DEFAULT, max_workers=4), revision=6)


@pytest.mark.usefixtures("dispatching")
async def test_a_row_that_changed_is_dispatched_anew(bench: DispatcherBench) -> None:
    changed = Endpoint("default", jobs_per_worker=3)
    await bench.endpoints.put(changed)
    await eventually(lambda: bench.opened[-1].endpoint == changed and bench.running())
    assert bench.running() == ["default"]


async def test_rows_are_noted_and_dispatched_until_they_are_gone(bench: DispatcherBench) -> None:
    await bench.endpoints.put(Endpoint("fast"))
    async with bench.dispatching():
        await eventually(lambda: bench.running() == ["default", "fast"])
        assert await bench.endpoints.noted() == {"default", "fast"}
        await bench.remove_row("fast")
        await eventually(lambda: bench.running() == ["default"])
        await bench.endpoints.put(Endpoint("slow"))
        await eventually(lambda: bench.running() == ["default", "slow"])
        assert (bench.deleted.running, bench.gone.running) == (1, 1)
    assert (bench.deleted.running, bench.gone.running) == (0, 0)
    assert await bench.endpoints.noted() == {"default", "fast", "slow"}


@pytest.mark.usefixtures("dispatching")
async def test_only_the_holder_of_the_lease_dispatches(bench: DispatcherBench) -> None:
    async with bench.dispatching("two") as two:
        await eventually(lambda: bench.leases.asked["two"] > 3)
        assert len(bench.opened) == 1
        assert await two.status("default") is None


async def test_another_takes_over_when_the_lease_runs_out(bench: DispatcherBench) -> None:
    for holder in ("one", "two"):
        async with bench.dispatching(holder):
            await eventually(lambda: bench.running() == ["default"], within_s=10)
    assert len(bench.opened) == 2


@pytest.mark.usefixtures("dispatching")
async def test_an_endpoint_whose_loop_ended_begins_again(bench: DispatcherBench) -> None:
    bench.opened[0].failing.set()
    await eventually(lambda: len(bench.opened) == 2 and bench.running() == ["default"])


@pytest.mark.usefixtures("dispatching")
async def test_without_a_database_the_last_holder_goes_on(bench: DispatcherBench) -> None:
    bench.database_is_away(is_away=True)
    await asyncio.sleep(1.5 * LEASE_S)
    await eventually(lambda: bench.leases.refused)
    assert bench.running() == ["default"]
    async with bench.dispatching("two") as two:
        await eventually(lambda: "two" in bench.leases.refused)
        assert await two.status("default") is None
        bench.database_is_away(is_away=False)
        await eventually(lambda: bench.running() == ["default"])


@pytest.mark.usefixtures("dispatching")
async def test_if_the_database_hangs_the_holder_goes_on(bench: DispatcherBench) -> None:
    with bench.leases.hanging, bench.endpoints.hanging, bench.deleted.ending:
        await asyncio.sleep(1.5 * LEASE_S)
        assert bench.running() == ["default"]
    await eventually(lambda: bench.running() == ["default"])
    assert len(bench.opened) == 1


@pytest.mark.usefixtures("dispatching")
async def test_the_lease_is_renewed_while_the_rows_cannot_be_read(bench: DispatcherBench) -> None:
    with bench.endpoints.hanging:
        asked = bench.leases.asked["one"]
        await asyncio.sleep(1.5 * LEASE_S)
        await eventually(lambda: bench.leases.asked["one"] > asked)
        assert not await bench.leases.acquire("dispatcher", "another", ttl_s=LEASE_S)
        assert bench.running() == ["default"]
