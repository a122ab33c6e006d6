"""Endpoints on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from events.log import utc_now
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.object_infos import ObjectInfos
from events.store.records import Endpoint, StoredEndpoint


class FullError(Exception):
    """The error with which a check of these tests refuses a write."""


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


async def test_a_row_keeps_all_that_it_is_given(database: Database) -> None:
    endpoints = Endpoints(database)
    stored = StoredEndpoint(
        endpoint=Endpoint(
            id="own",
            owner="alice",
            checkpoint="a",
            checkpoints=("a", "b"),
            gpus=0.5,
            cpus=2,
            resources={"disk": 1.5},
            labels={"zone": "!b"},
            min_workers=0,
            max_workers=3,
            jobs_per_worker=2,
            idle_timeout_s=5.0,
            job_timeout_s=60.0,
            queue_timeout_s=30.0,
            max_attempts=2,
            max_queued=7,
            max_pixels=2**33,
            max_steps=9,
            max_cost=1.5,
            precision="bfloat16",
            channels_last=True,
            compiler="inductor",
            compatibility="comfyui",
            draining=True,
            ends_at=datetime(2026, 3, 1, tzinfo=UTC),
        ),
        given=frozenset({"gpus", "cpus"}),
        applied="3f6c",
    )
    assert await endpoints.add(stored)
    assert not await endpoints.add(StoredEndpoint(endpoint=Endpoint("own")))
    assert await endpoints.stored_one("own") == stored
    await endpoints.put(Endpoint("other"))
    assert await endpoints.stored(owner="alice") == [stored]
    assert len(await endpoints.stored()) == 2


async def test_of_two_changes_of_one_revision_one_is_made(
    database: Database, other_database: Database
) -> None:
    endpoints, others = Endpoints(database), Endpoints(other_database)
    await endpoints.put(Endpoint("own"))
    before = await endpoints.stored_one("own")
    assert before is not None
    changes = [replace(before, endpoint=Endpoint("own", max_steps=steps)) for steps in (5, 6)]
    made = await asyncio.gather(endpoints.change(changes[0]), others.change(changes[1]))
    (now,) = [each for each in made if each is not None]
    assert now.revision == before.revision + 1
    assert await others.stored_one("own") == now
    assert not await endpoints.remove(before)
    assert await endpoints.remove(now)
    assert await endpoints.change(now) is None
    assert await endpoints.all() == []


async def test_of_writes_that_are_checked_each_sees_those_before_it(
    database: Database, other_database: Database
) -> None:
    sides = [Endpoints(database), Endpoints(other_database)]
    await sides[0].put(Endpoint("a", max_workers=1))

    def check(rows: Collection[Endpoint]) -> None:
        if sum(each.max_workers for each in rows) >= 3:
            raise FullError

    async def add(number: int) -> None:
        stored = StoredEndpoint(endpoint=Endpoint(f"b{number}"))
        await sides[number % 2].add(stored, check=check)

    async def change(side: Endpoints) -> None:
        before = await side.stored_one("a")
        assert before is not None
        changed = replace(before.endpoint, max_workers=2)
        await side.change(replace(before, endpoint=changed), check=check)

    writes = [*(add(number) for number in range(8)), *map(change, sides)]
    ends = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(end, FullError) for end in ends) >= 7
    assert {type(end) for end in ends} == {FullError, type(None)}
    assert sum(each.max_workers for each in await sides[0].all()) == 3


async def test_a_row_follows_the_settings_but_for_what_it_was_given(database: Database) -> None:
    endpoints, default = Endpoints(database), Endpoint("default", max_workers=2, max_steps=5)
    await endpoints.settle([default])
    before = await endpoints.stored_one("default")
    await endpoints.settle([default])
    assert await endpoints.stored_one("default") == before == StoredEndpoint(endpoint=default)
    given = replace(before, endpoint=replace(default, max_steps=9), given=frozenset({"max_steps"}))
    assert await endpoints.change(given)
    await endpoints.settle([replace(default, max_workers=4)])
    assert await endpoints.get("default") == replace(default, max_workers=4, max_steps=9)


INSTALL = Endpoint("comfyui", engine="comfyui", comfyui_dir="/srv/ComfyUI", gpus=0.5)


async def test_an_endpoint_that_the_settings_no_longer_have_is_drained(database: Database) -> None:
    endpoints, default = Endpoints(database), Endpoint("default", fallback="comfyui")
    await endpoints.put(Endpoint("other"))
    await endpoints.settle([default, INSTALL])
    row = await endpoints.stored_one("comfyui")
    assert row == StoredEndpoint(endpoint=INSTALL)
    given = replace(INSTALL, max_queued=5)
    assert await endpoints.change(replace(row, endpoint=given, given=frozenset({"max_queued"})))

    await endpoints.settle([Endpoint("default")])
    without = [Endpoint("default"), Endpoint("other")]
    assert await endpoints.all() == [replace(given, draining=True), *without]

    await endpoints.settle([default, replace(INSTALL, gpus=None)])
    assert await endpoints.get("comfyui") == replace(given, gpus=None)


@pytest.mark.parametrize(
    "stored",
    [
        StoredEndpoint(endpoint=Endpoint("comfyui", owner="alice", max_steps=7)),
        StoredEndpoint(
            endpoint=Endpoint("comfyui", engine="comfyui", comfyui_url="http://127.0.0.1:8188"),
            given=frozenset({"engine", "comfyui_url"}),
        ),
        StoredEndpoint(endpoint=replace(INSTALL, draining=True, ends_at=utc_now())),
    ],
    ids=["another-engine", "an-operator's", "deleted"],
)
async def test_the_settings_change_no_endpoint_that_somebody_else_made_or_deleted(
    database: Database, stored: StoredEndpoint
) -> None:
    endpoints = Endpoints(database)
    assert await endpoints.add(stored)
    before = await endpoints.stored_one("comfyui")

    await endpoints.settle([Endpoint("default"), replace(INSTALL, gpus=1)])
    await endpoints.settle([Endpoint("default")])

    assert await endpoints.stored_one("comfyui") == before


async def test_the_declared_node_types_are_those_of_the_present_server(
    database: Database,
) -> None:
    endpoints, object_infos = Endpoints(database), ObjectInfos(database)
    here = Endpoint("comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
    await endpoints.add_missing(here)
    assert await object_infos.get(here) is await object_infos.digest(here) is None
    for digest in ("first", "second"):
        content = b"\0" + digest.encode()
        await object_infos.put(here, digest, content)
        assert await object_infos.get(here) == (digest, content)
    assert await object_infos.digest(here) == "second"
    assert await object_infos.digest(replace(here, comfyui_dir="/other")) is None

    stored = await endpoints.stored_one("comfy")
    assert stored is not None
    assert await endpoints.remove(replace(stored, revision=9)) is False
    assert await object_infos.digest(here) == "second"
    assert await endpoints.remove(stored) is True
    assert await object_infos.get(here) is None
