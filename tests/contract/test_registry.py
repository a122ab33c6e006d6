"""Endpoints and leases on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.leases import Leases
from events.store.records import Endpoint


async def test_an_endpoint_is_replaced_by_its_id(database: Database) -> None:
    endpoints = Endpoints(database)
    default = Endpoint(id="default")
    fast = Endpoint(id="fast", checkpoint="sdxl.safetensors", gpus=0.5, cpus=2, max_pixels=2**40)
    await endpoints.put(fast)
    await endpoints.put(default)
    assert await endpoints.all() == [default, fast]
    await endpoints.put(replace(fast, checkpoint=None, max_workers=8))
    assert await endpoints.get("fast") == replace(fast, checkpoint=None, max_workers=8)
    assert await endpoints.get("default") == default
    assert await endpoints.get("slow") is None


async def test_an_endpoint_that_is_there_is_not_added_again(
    database: Database, other_database: Database
) -> None:
    endpoints, others = Endpoints(database), Endpoints(other_database)
    chosen = Endpoint(id="default", max_workers=4)
    await asyncio.gather(
        *(side.add_missing(chosen) for side in [endpoints, others, endpoints, others])
    )
    await others.add_missing(Endpoint(id="default", max_workers=1))
    assert await endpoints.all() == [chosen]


async def test_a_lease_is_one_holders(database: Database, other_database: Database) -> None:
    leases, others = Leases(database), Leases(other_database)
    assert await leases.acquire("dispatcher/default", "a", ttl_s=60)
    assert not await others.acquire("dispatcher/default", "b", ttl_s=60)
    assert await others.acquire("dispatcher/fast", "b", ttl_s=60)
    assert await leases.acquire("dispatcher/default", "a", ttl_s=60)


async def test_of_many_who_want_a_lease_one_gets_it(
    database: Database, other_database: Database
) -> None:
    leases, others = Leases(database), Leases(other_database)
    outcomes = await asyncio.gather(
        *(side.acquire("x", f"{n}", ttl_s=60) for n, side in enumerate([leases, others] * 4))
    )
    assert outcomes.count(True) == 1


async def test_a_lease_that_ran_out_is_taken_over(database: Database) -> None:
    leases = Leases(database)
    assert await leases.acquire("x", "a", ttl_s=0.2)
    async with asyncio.timeout(10):
        while not await leases.acquire("x", "b", ttl_s=60):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.02)
    assert not await leases.acquire("x", "a", ttl_s=60)


async def test_a_renewed_lease_lasts_from_the_renewal(database: Database) -> None:
    leases = Leases(database)
    assert await leases.acquire("x", "a", ttl_s=0)
    assert await leases.acquire("x", "a", ttl_s=60)
    assert not await leases.acquire("x", "b", ttl_s=60)


async def test_a_lease_is_released_by_its_holder_alone(database: Database) -> None:
    leases = Leases(database)
    await leases.acquire("x", "a", ttl_s=60)
    await leases.release("x", "b")
    assert not await leases.acquire("x", "b", ttl_s=60)
    await leases.release("x", "a")
    assert await leases.acquire("x", "b", ttl_s=60)
