"""Endpoints that several dispatchers divide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import pytest

from actors.dispatch.dispatcher import Dispatcher
from events.store.records import Endpoint
from tests.support.database import database_in
from tests.support.polling import eventually
from tests.support.workers.dispatchers import DEFAULT, LEASE_S, DispatcherBench

ALL = ["a", "b", "c", "default"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[DispatcherBench]:
    async with database_in(tmp_path) as database:
        bench = DispatcherBench(database)
        for id in ALL[:-1]:
            await bench.endpoints.put(Endpoint(id))
        yield bench


async def ids(dispatcher: Dispatcher) -> list[str]:
    return sorted(await dispatcher.statuses())


async def are_divided(bench: DispatcherBench, *dispatchers: Dispatcher) -> bool:
    """Each of `ALL` is dispatched once, and each dispatcher has as many."""
    told = [await ids(each) for each in dispatchers]
    fair = {len(ALL) // len(dispatchers)}
    return bench.running() == sorted(chain(*told)) == ALL and {len(each) for each in told} == fair


async def test_each_endpoint_is_dispatched_by_one_of_them(bench: DispatcherBench) -> None:
    async with bench.dispatching("one", dispatchers=2) as one:
        await eventually(lambda: bench.running() == ALL)
        async with bench.dispatching("two", dispatchers=2) as two:
            await eventually(lambda: are_divided(bench, one, two))
            [theirs, *_], [ours, *_] = await ids(one), await ids(two)
            assert await one.status(ours) is await two.status(theirs) is None
            assert await one.status(theirs)
            assert await two.status(ours)
            assert (bench.deleted.running, bench.gone.running) == (1, 1)
        await eventually(lambda: bench.running() == ALL)
    assert bench.running() == []
    assert await bench.endpoints.get("default") == DEFAULT
    assert await bench.leases.held("dispatcher/") == 0


async def test_one_stops_before_another_begins(bench: DispatcherBench) -> None:
    async with bench.dispatching("one", dispatchers=2) as one:
        await eventually(lambda: bench.running() == ALL)
        async with bench.dispatching("two", dispatchers=2) as two:
            await eventually(lambda: are_divided(bench, one, two))
            assert sorted(bench.left) == await ids(two)
    assert not any(each.has_overlapped for each in bench.opened)


async def test_rows_that_come_and_go_are_divided(bench: DispatcherBench) -> None:
    async with (
        bench.dispatching("one", dispatchers=2) as one,
        bench.dispatching("two", dispatchers=2) as two,
    ):
        await eventually(lambda: are_divided(bench, one, two))
        for id in ("d", "e"):
            await bench.endpoints.put(Endpoint(id))
        more = sorted([*ALL, "d", "e"])
        await eventually(lambda: bench.running() == more)
        assert {"d", "e"} <= await bench.endpoints.noted()
        assert sorted(await ids(one) + await ids(two)) == more
        for id in await ids(one):
            await bench.remove_row(id)
        left = await ids(two)
        await eventually(lambda: bench.running() == left)

        async def are_fair() -> bool:
            return abs(len(await ids(one)) - len(await ids(two))) <= 1

        await eventually(are_fair)
        await bench.endpoints.put(Endpoint(left[0], jobs_per_worker=3))
        await eventually(lambda: bench.opened[-1].endpoint.jobs_per_worker == 3)
        await eventually(lambda: bench.running() == left)


async def test_without_a_database_endpoints_are_dispatched_until_the_leases_run_out(
    bench: DispatcherBench,
) -> None:
    async with (
        bench.dispatching("one", dispatchers=2) as one,
        bench.dispatching("two", dispatchers=2) as two,
    ):
        await eventually(lambda: are_divided(bench, one, two))
        bench.database_is_away(is_away=True)
        await eventually(lambda: len(bench.leases.refused) == 2)
        assert await are_divided(bench, one, two)
        await eventually(lambda: not bench.running())
        await eventually(lambda: (bench.deleted.running, bench.gone.running) == (0, 0))
        bench.database_is_away(is_away=False)
        await eventually(lambda: are_divided(bench, one, two))


async def test_where_the_database_hangs_endpoints_rest_once_the_leases_have_run_out(
    bench: DispatcherBench,
) -> None:
    async with (
        bench.dispatching("one", dispatchers=2) as one,
        bench.dispatching("two", dispatchers=2) as two,
    ):
        await eventually(lambda: are_divided(bench, one, two))
        with bench.leases.hanging, bench.endpoints.hanging, bench.deleted.ending:
            await eventually(lambda: not bench.running(), within_s=10)
        await eventually(lambda: are_divided(bench, one, two))


async def test_the_leases_are_renewed_while_the_rows_cannot_be_read(bench: DispatcherBench) -> None:
    async with bench.dispatching("one", dispatchers=2) as one:
        await eventually(lambda: bench.running() == ALL)
        with bench.endpoints.hanging:
            await asyncio.sleep(1.5 * LEASE_S)
            assert await ids(one) == ALL
            assert await bench.leases.held("dispatcher/part/") == len(ALL)
