"""The data that protocols store for their callers, on both databases."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from events.store.database import Database
from events.store.keys import KeyOptions
from events.store.records import FileKind, FileOutcome, UserFile
from events.store.user_files import UserFiles

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=1)
DATA, SETTING = FileKind.DATA, FileKind.SETTING


@pytest.fixture
def files(database: Database) -> UserFiles:
    return UserFiles(database, max_files=2, max_bytes=20)


async def test_a_file_is_what_was_stored_last(files: UserFiles) -> None:
    assert await files.put("alice", DATA, {"a": b"\0\xff"}, at=NOON) is FileOutcome.DONE
    assert await files.put("alice", DATA, {"a": b"two"}, at=LATER) is FileOutcome.DONE
    await files.put("bob", DATA, {"a": b"bob's"}, at=NOON)
    assert await files.content("alice", DATA, "a") == b"two"
    known = UserFile(name="a", size_bytes=3, created_at=NOON, changed_at=LATER)
    assert await files.all("alice", DATA) == [known]
    assert await files.find("alice", DATA, "a") == known
    assert await files.find("alice", SETTING, "a") is None
    assert await files.contents("alice", SETTING) == {}


async def test_a_file_is_kept_where_it_is_not_to_be_replaced(files: UserFiles) -> None:
    await files.put("alice", DATA, {"a": b"1", "b": b"2"}, at=NOON)
    stored = await files.put("alice", DATA, {"a": b"3"}, at=NOON, replaces=False)
    renamed = await files.rename("alice", DATA, "b", "a", at=NOON, replaces=False)
    assert (stored, renamed) == (FileOutcome.EXISTS, FileOutcome.EXISTS)
    assert await files.contents("alice", DATA) == {"a": b"1", "b": b"2"}
    assert await files.rename("alice", DATA, "b", "a", at=NOON, replaces=True) is FileOutcome.DONE
    assert await files.contents("alice", DATA) == {"a": b"2"}
    assert await files.rename("alice", DATA, "a", "a", at=NOON, replaces=False) is FileOutcome.DONE
    assert await files.rename("bob", DATA, "a", "c", at=NOON, replaces=True) is FileOutcome.MISSING
    assert await files.remove("alice", DATA, "a")
    assert not await files.remove("alice", DATA, "a")


async def test_an_owner_keeps_so_many_files_and_so_many_bytes(files: UserFiles) -> None:
    await files.put("alice", DATA, {"a": b"x" * 9}, at=NOON)
    await files.put("alice", SETTING, {"a": b"x" * 4}, at=NOON)
    assert await files.put("alice", DATA, {"b": b"x" * 5}, at=NOON) is FileOutcome.FULL
    assert await files.put("alice", DATA, {"b": b"x" * 4}, at=NOON) is FileOutcome.DONE
    assert await files.put("alice", DATA, {"a": b"x" * 9}, at=NOON) is FileOutcome.DONE
    assert await files.put("alice", DATA, {"a": b"", "c": b""}, at=NOON) is FileOutcome.FULL
    assert await files.put("alice", SETTING, {"a": b"xx"}, at=NOON, max_bytes=2) is FileOutcome.FULL
    assert await files.put("alice", SETTING, {"a": b"x"}, at=NOON, max_bytes=2) is FileOutcome.DONE
    assert await files.put("alice", SETTING, {}, at=NOON) is FileOutcome.DONE
    assert await files.put("bob", DATA, {"a": b"x" * 19}, at=NOON) is FileOutcome.DONE


async def test_files_of_the_same_moment_keep_to_the_same_room(files: UserFiles) -> None:
    puts = [files.put("alice", DATA, {name: b"x" * 9}, at=NOON) for name in "abcdef"]
    assert Counter(await asyncio.gather(*puts)) == {FileOutcome.DONE: 2, FileOutcome.FULL: 4}
    assert len(await files.all("alice", DATA)) == 2


async def test_one_of_two_renames_of_the_same_moment_is_told_of_the_other(
    database: Database,
) -> None:
    files = UserFiles(database, max_files=20, max_bytes=1000)
    for name in "abcdef":
        await files.put("alice", DATA, {name: b""}, at=NOON)
    renames = [
        files.rename("alice", DATA, name, "same", at=NOON, replaces=False) for name in "abcdef"
    ]
    assert Counter(await asyncio.gather(*renames)) == {FileOutcome.DONE: 1, FileOutcome.EXISTS: 5}


async def test_the_options_of_a_key_are_those_that_were_set_last(database: Database) -> None:
    options = KeyOptions(database)
    assert await options.options_of("k1") == {}
    await options.put("k1", {"a": 1, "b": "x"}, NOON)
    await options.put("k1", {"a": [None]}, LATER)
    await options.put("k2", {"c": 1}, NOON)
    assert await options.options_of("k1") == {"a": [None]}
