"""Leases on both databases."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from events.errors import DatabaseUnavailable
from events.store.database import Database
from events.store.leases import Leases, answered
from events.store.tables import LEASES
from tests.support.patience import FACTOR


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


async def test_a_lease_that_ran_out_is_taken_over_unless_it_was_renewed(database: Database) -> None:
    leases = Leases(database)
    assert await leases.acquire("renewed", "a", ttl_s=0)
    assert await leases.acquire("renewed", "a", ttl_s=60)
    assert not await leases.acquire("renewed", "b", ttl_s=60)
    assert await leases.acquire("x", "a", ttl_s=0.2)
    async with asyncio.timeout(10 * FACTOR):
        while not await leases.acquire("x", "b", ttl_s=60):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.02)
    assert not await leases.acquire("x", "a", ttl_s=60)


async def test_a_lease_is_released_by_its_holder_alone(database: Database) -> None:
    leases = Leases(database)
    await leases.acquire("x", "a", ttl_s=60)
    await leases.release("x", "b")
    assert not await leases.acquire("x", "b", ttl_s=60)
    await leases.release("x", "a")
    assert await leases.acquire("x", "b", ttl_s=60)


async def test_a_renewal_that_another_transaction_holds_up_is_given_up(
    database: Database, other_database: Database
) -> None:
    leases = Leases(database)
    assert await leases.acquire("x", "a", ttl_s=60)
    async with other_database.write() as connection:
        await connection.execute(sa.update(LEASES).values(holder="a"))
        with pytest.raises(DatabaseUnavailable):
            await answered(leases.acquire("x", "a", ttl_s=60), within_s=0.1)
    assert await answered(leases.acquire("x", "a", ttl_s=60), within_s=10)


async def test_a_lease_from_before_the_clock_was_set_back_is_taken(database: Database) -> None:
    leases = Leases(database)
    assert await leases.acquire("dispatcher", "dead", ttl_s=3600)
    assert not await leases.acquire("dispatcher", "next", ttl_s=1850)
    assert await leases.acquire("dispatcher", "next", ttl_s=10)
    assert not await leases.acquire("dispatcher", "third", ttl_s=10)
