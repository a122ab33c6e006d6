"""Signing secrets, allowed hosts, and what is remembered of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from actors.callbacks.api_key_data import AllowedHosts, QueryCache, SigningSecrets
from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import KeyLimits
from storage.service_secret import webhook_secret
from tests.support.callbacks.role import SECRET, api_key
from tests.support.clock import Clock
from tests.support.database import database_in


class Source:
    error: Exception | None = None

    async def ask(self, name: str) -> str:
        if self.error is not None:
            raise self.error
        return f"of {name}"


async def test_what_was_known_is_known_while_the_database_is_away_or_its_answer_is_broken() -> None:
    clock, source = Clock(0.0), Source()
    remembered = QueryCache(source.ask, unknown="?", clock=clock)
    assert await remembered.get("a") == "of a"
    for error in (DatabaseUnavailable(), KeyError("nobody foresaw this")):
        clock.now += 60
        source.error = error
        assert await remembered.get("a") == "of a"
        assert await remembered.get("b") == "?"


async def test_many_names_push_out_the_oldest_alone() -> None:
    clock, source = Clock(0.0), Source()
    remembered = QueryCache(source.ask, unknown="?", clock=clock)
    for number in range(10_001):
        await remembered.get(str(number))
    clock.now += 60
    source.error = DatabaseUnavailable()
    assert await remembered.get("1") == "of 1"
    assert await remembered.get("10000") == "of 10000"
    assert await remembered.get("0") == "?"


def of_keys(*ids: str) -> list[str]:
    return [webhook_secret(SECRET, id) for id in ids]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with database_in(tmp_path) as database:
        yield database


async def take_away(database: Database, folder: Path) -> None:
    await database.close()
    for file in folder.iterdir():
        file.unlink()


async def test_the_submitting_key_comes_first_and_then_the_newest_others(
    database: Database,
) -> None:
    keys = ApiKeys(database)
    for age in range(4):
        created_at = utc_now() - timedelta(days=age)
        await keys.add(api_key(f"k{age}", "alice", created_at=created_at))
    secrets = SigningSecrets(keys, secret=SECRET, most=3)
    assert await secrets.of("alice", "k3") == of_keys("k3", "k0", "k1")
    assert await secrets.of("alice", "k0") == of_keys("k0", "k1", "k2")
    assert await secrets.of("alice", "erased") == of_keys("erased", "k0", "k1")
    assert await SigningSecrets(keys, secret=SECRET, most=1).of("alice", "k3") == of_keys("k3")


async def test_a_new_key_signs_after_some_seconds_and_the_others_while_the_database_is_away(
    database: Database, tmp_path: Path
) -> None:
    keys, clock = ApiKeys(database), Clock(0.0)
    secrets = SigningSecrets(keys, secret=SECRET, most=3, clock=clock)
    assert await secrets.of("alice", "k1") == of_keys("k1")
    await keys.add(api_key("k2", "alice"))
    assert await secrets.of("alice", "k1") == of_keys("k1")
    clock.now = 5
    assert await secrets.of("alice", "k1") == of_keys("k1", "k2")
    await take_away(database, tmp_path)
    clock.now = 60
    assert await secrets.of("alice", "k1") == of_keys("k1", "k2")
    assert await secrets.of("bob", "k9") == of_keys("k9"), "nothing was known of others"


async def test_a_list_that_was_made_shorter_holds_after_some_seconds(database: Database) -> None:
    keys, clock = ApiKeys(database), Clock(0.0)
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
    keys, clock = ApiKeys(database), Clock(0.0)
    hosts = AllowedHosts(keys, default=["*"], clock=clock)
    await keys.add(api_key("k1", "alice", limits=KeyLimits(callback_hosts=("b.example",))))
    assert not await hosts.allow("k1", "a.example")
    await take_away(database, tmp_path)
    clock.now = 60
    assert not await hosts.allow("k1", "a.example")
    assert await hosts.allow("k2", "a.example"), "it was allowed when the job was accepted"
