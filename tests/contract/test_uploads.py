"""Rows of uploads on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from events.ids import new_id
from events.store.database import Database
from events.store.read_model import Usage
from events.store.records import Upload
from events.store.uploads import Uploads
from tests.support.uploads import upload_row

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def uploads(database: Database) -> Uploads:
    return Uploads(database)


@pytest.fixture
def usage(database: Database) -> Usage:
    return Usage(database)


def upload(name: str = "cat.png", *, at: datetime = NOON, **changes: Any) -> Upload:
    return upload_row(at=at, name=name, **changes)


async def add(uploads: Uploads, *rows: Upload) -> None:
    for row in rows:
        await uploads.add(row)


async def test_a_name_stands_for_the_last_file(uploads: Uploads) -> None:
    first, last, bobs = upload(), upload(at=NOON + DAY), upload(owner="bob")
    await add(uploads, first, bobs, last)
    assert await uploads.page("alice", limit=9) == [last]
    found = await uploads.use("alice", ["cat.png", "dog.png"], NOON + 2 * DAY)
    assert {name: each.id for name, each in found.items()} == {"cat.png": last.id}
    assert found["cat.png"].used_at == NOON + 2 * DAY
    assert await uploads.page("bob", limit=9) == [bobs]


async def test_other_files_of_the_same_name_get_numbers(uploads: Uploads) -> None:
    first, second, again, third = (
        upload(digest=f"sha256:{each}", at=NOON + index * DAY) for index, each in enumerate("abba")
    )
    bobs, plain = upload(owner="bob", digest="sha256:b"), upload("cat", digest="sha256:c")
    added = [await uploads.add_beside(each) for each in (first, second, again, third, bobs, plain)]
    assert [each.name for each in added if isinstance(each, Upload)] == [
        "cat.png",
        "cat (1).png",
        "cat (1).png",
        "cat.png",
        "cat.png",
        "cat",
    ]
    assert [each.id for each in added if isinstance(each, Upload)][:4] == [
        first.id,
        second.id,
        second.id,
        first.id,
    ]
    await uploads.add(upload(digest="sha256:d", at=NOON + 9 * DAY))
    found = await uploads.add_beside(upload(digest="sha256:e", at=NOON + 9 * DAY))
    assert isinstance(found, Upload)
    assert found.name == "cat (2).png"


async def test_a_file_that_is_found_again_is_used_and_needs_no_room(uploads: Uploads) -> None:
    first, second = upload(digest="sha256:a"), upload(digest="sha256:b")
    for each in (first, second):
        await uploads.add_beside(each)
    again = upload(digest="sha256:b", at=NOON + 9 * DAY)
    found = await uploads.add_beside(again, max_bytes=1)
    assert isinstance(found, Upload)
    assert (found.id, found.used_at) == (second.id, again.used_at)
    assert await uploads.find("alice", "cat (1).png") == found


async def test_a_long_name_stays_a_name_with_a_number(uploads: Uploads) -> None:
    for name, stem, suffix in (
        (f"{'a' * 251}.png", "a" * 236, ".png"),
        (f"a.{'b' * 253}", f"a.{'b' * 238}", ""),
    ):
        await uploads.add_beside(upload(name, digest="sha256:a"))
        for digest, number in (("sha256:b", 1), ("sha256:c", 2), ("sha256:b", 1)):
            found = await uploads.add_beside(upload(name, digest=digest))
            assert isinstance(found, Upload)
            assert found.name == f"{stem} ({number}){suffix}"


async def test_files_that_arrive_together_get_names_of_their_own(uploads: Uploads) -> None:
    files = [upload(digest=f"sha256:{each}") for each in range(5)]
    added = await asyncio.gather(*map(uploads.add_beside, files))
    names = {each.name for each in added if isinstance(each, Upload)}
    assert names == {"cat.png", *(f"cat ({number}).png" for number in range(1, 5))}


async def test_a_name_of_many_files_costs_few_queries(uploads: Uploads, database: Database) -> None:
    names = ["cat.png", *(f"cat ({number}).png" for number in range(1, 70) if number != 20)]
    await add(uploads, *(upload(name, digest=f"sha256:{name}") for name in names))
    queries: list[str] = []
    engine = database._engine.sync_engine
    sa.event.listen(engine, "before_cursor_execute", lambda *args: queries.append(args[2]))
    added = await uploads.add_beside(upload(digest="sha256:new"))
    assert isinstance(added, Upload)
    assert added.name in {"cat (20).png", "cat (70).png"}
    assert len(queries) < 9


async def test_an_upload_of_a_numbered_name_and_its_number_do_not_meet(uploads: Uploads) -> None:
    await uploads.add(upload(digest="sha256:first"))
    files = [upload(digest=f"sha256:{each}") for each in range(4)]
    files += [upload(f"cat ({each}).png", digest=f"sha256:n{each}") for each in range(1, 4)]
    added = await asyncio.gather(*map(uploads.add_beside, files))
    assert len({each.name for each in added if isinstance(each, Upload)}) == len(files)
    same = [upload(digest=f"sha256:same{each}") for each in range(5)]
    await asyncio.gather(*map(uploads.add, same))
    named = [each for each in await uploads.page("alice", limit=99) if each.name == "cat.png"]
    assert len(named) == 1


async def test_files_that_arrive_together_keep_to_the_limit(uploads: Uploads) -> None:
    files = [upload(f"{number}.png", size_bytes=100_000) for number in range(12)]
    adds = (uploads.add, uploads.add_beside)
    added = await asyncio.gather(
        *(adds[at % 2](each, max_bytes=300_000) for at, each in enumerate(files))
    )
    assert [each for each in added if isinstance(each, int)] == [300_000] * 9
    assert len(await uploads.page("alice", limit=12)) == 3


async def test_a_file_is_found_by_its_id_while_its_name_stands_for_it(uploads: Uploads) -> None:
    first, last, bobs = upload(), upload(at=NOON + DAY), upload(owner="bob")
    await add(uploads, first, bobs, last)
    ids = [first.id, last.id, bobs.id, new_id()]
    assert await uploads.of_ids("alice", ids) == {last.id: last}
    assert await uploads.of_ids("alice", []) == {}


async def test_pages_follow_each_other(uploads: Uploads) -> None:
    rows = [upload(f"{number}.png") for number in range(5)]
    await add(uploads, *rows)
    page = await uploads.page("alice", limit=3)
    rest = await uploads.page("alice", limit=3, before=page[-1].id)
    assert [*page, *rest] == rows[::-1]


async def test_a_removed_name_is_unknown(uploads: Uploads) -> None:
    await add(uploads, upload())
    assert not await uploads.remove("bob", "cat.png", NOON)
    assert await uploads.remove("alice", "cat.png", NOON)
    assert not await uploads.remove("alice", "cat.png", NOON)
    assert await uploads.use("alice", ["cat.png"], NOON) == {}
    assert await uploads.page("alice", limit=9) == []


async def test_a_replaced_file_is_forgotten_once_no_job_can_need_it(uploads: Uploads) -> None:
    first, last = upload(), upload(at=NOON + DAY)
    await add(uploads, first, last)
    due: dict[str, Any] = {"unused_since": None, "limit": 9}
    assert await uploads.forget(replaced_before=NOON + DAY, **due) == []
    assert await uploads.forget(replaced_before=NOON + 2 * DAY, **due) == [first.storage_key]
    assert await uploads.known([first.storage_key, last.storage_key]) == {last.storage_key}


async def test_an_unused_file_is_forgotten_a_used_one_is_not(uploads: Uploads) -> None:
    unused, used = upload("a"), upload("b")
    await add(uploads, unused, used)
    await uploads.use("alice", ["b"], NOON + DAY)
    keys = await uploads.forget(unused_since=NOON + DAY, replaced_before=NOON, limit=9)
    assert keys == [unused.storage_key]
    assert await uploads.use("alice", ["a"], NOON) == {}


async def test_no_more_than_the_limit_is_forgotten_at_once(uploads: Uploads) -> None:
    await add(uploads, *(upload(f"{number}") for number in range(5)))
    sizes = [
        len(await uploads.forget(unused_since=NOON + DAY, replaced_before=NOON, limit=2))
        for _ in range(4)
    ]
    assert sizes == [2, 2, 1, 0]


SMALL = 64 * 1024
"""The bytes for which a small file counts."""


async def test_what_an_owner_keeps_is_added_up(uploads: Uploads, usage: Usage) -> None:
    async def kept_bytes() -> int:
        return (await usage.kept_bytes("alice"))[1].upload_bytes

    assert await kept_bytes() == 0
    await uploads.add(upload("cat.png", size_bytes=100_000))
    await uploads.add(upload("cat.png", size_bytes=200_000))
    await uploads.add(upload("dog.png", size_bytes=70))
    await uploads.add(upload("cat.png", size_bytes=2**40, owner="bob"))
    assert await kept_bytes() == 300_000 + SMALL
    await uploads.remove("alice", "cat.png", NOON)
    assert await kept_bytes() == 300_000 + SMALL  # the files are still there
    await uploads.forget(unused_since=None, replaced_before=NOON + DAY, limit=9)
    assert await kept_bytes() == SMALL


async def test_what_an_owner_may_not_keep_is_not_added(uploads: Uploads) -> None:
    async def added(name: str, **changes: Any) -> int | None:
        return await uploads.add(upload(name, **changes), max_bytes=300_000)

    assert await added("cat.png", size_bytes=200_000) is None
    assert await added("cat.png", size_bytes=100_001) == 200_000
    [kept] = await uploads.page("alice", limit=9)
    assert kept.size_bytes == 200_000
    assert await added("dog.png", size_bytes=100_000) is None
    assert await added("cow.png", size_bytes=1) == 300_000
    assert await added("cow.png", owner="bob") is None
    assert await uploads.add(upload("cow.png"), max_bytes=0) is None
    other = upload("cow.png", digest="sha256:other")
    assert isinstance(await uploads.add_beside(other, max_bytes=300_000), int)
