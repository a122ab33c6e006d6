"""Which hosts a key may have called back now, whatever it could when the job was accepted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.callbacks.allowed_hosts import AllowedHosts
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import KeyLimits
from tests.support.callbacks.role import api_key


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}")
    await database.prepare()
    yield database
    await database.close()


async def test_a_list_that_was_made_shorter_holds_after_some_seconds(database: Database) -> None:
    keys, clock = ApiKeys(database), Clock()
    hosts = AllowedHosts(keys, default=["*"], clock=clock)
    await keys.add(api_key("k1", "alice"))
    assert await hosts.allow("k1", "a.example")
    await keys.change("k1", callback_hosts=("b.example",))
    assert await hosts.allow("k1", "a.example")
    clock.now = 5
    assert not await hosts.allow("k1", "a.example")
    assert await hosts.allow("k1", "b.example")


async def test_a_key_without_a_list_has_that_of_the_settings(database: Database) -> None:
    keys = ApiKeys(database)
    hosts = AllowedHosts(keys, default=["a.example"])
    await keys.add(api_key("k1", "alice"))
    await keys.add(api_key("k2", "alice", limits=KeyLimits(callback_hosts=("*",))))
    assert await hosts.allow("k1", "a.example")
    assert not await hosts.allow("k1", "b.example")
    assert await hosts.allow("k2", "b.example")


async def test_revoked_expired_and_unknown_keys_stop_nothing(database: Database) -> None:
    keys = ApiKeys(database)
    hosts = AllowedHosts(keys, default=["a.example"])
    await keys.add(api_key("revoked", "alice", revoked_at=utc_now()))
    await keys.add(api_key("expired", "alice", expires_at=utc_now()))
    for key_id in ("revoked", "expired", "unknown", "not\x00storable"):
        assert await hosts.allow(key_id, "a.example")


async def test_without_a_database_what_it_said_last_holds(
    database: Database, tmp_path: Path
) -> None:
    keys, clock = ApiKeys(database), Clock()
    hosts = AllowedHosts(keys, default=["*"], clock=clock)
    await keys.add(api_key("k1", "alice", limits=KeyLimits(callback_hosts=("b.example",))))
    assert not await hosts.allow("k1", "a.example")
    await database.close()
    for file in tmp_path.iterdir():
        file.unlink()
    clock.now = 60
    assert not await hosts.allow("k1", "a.example")
    assert await hosts.allow("k2", "a.example"), "it was allowed when the job was accepted"
