"""Endpoints on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from events.store.database import Database
from events.store.endpoints import Endpoints
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


async def test_an_endpoint_that_had_a_row_once_stays_noted(
    database: Database, other_database: Database
) -> None:
    endpoints, others = Endpoints(database), Endpoints(other_database)
    assert await endpoints.noted() == set()
    await asyncio.gather(endpoints.note(["default", "fast"]), others.note(["fast"]))
    await endpoints.note([])
    assert await others.noted() == {"default", "fast"}
