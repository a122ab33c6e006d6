from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from actors.callbacks.secrets import SigningSecrets
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.webhook_secret import webhook_secret
from tests.support.callbacks.role import SECRET, api_key


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of_keys(*ids: str) -> list[str]:
    return [webhook_secret(SECRET, id) for id in ids]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Not prepared yet, so that it is away."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}")
    yield database
    await database.close()


async def test_the_submitting_key_comes_first_and_then_the_newest_others(
    database: Database,
) -> None:
    await database.prepare()
    keys = ApiKeys(database)
    for age in range(4):
        created_at = utc_now() - timedelta(days=age)
        await keys.add(api_key(f"k{age}", "alice", created_at=created_at))
    secrets = SigningSecrets(keys, secret=SECRET, most=3)
    assert await secrets.of("alice", "k3") == of_keys("k3", "k0", "k1")
    assert await secrets.of("alice", "k0") == of_keys("k0", "k1", "k2")
    assert await secrets.of("alice", "erased") == of_keys("erased", "k0", "k1")
    assert await SigningSecrets(keys, secret=SECRET, most=1).of("alice", "k3") == of_keys("k3")


async def test_without_a_database_the_submitting_key_signs(database: Database) -> None:
    secrets = SigningSecrets(ApiKeys(database), secret=SECRET, most=3)
    assert await secrets.of("alice", "k1") == of_keys("k1")


async def test_a_new_key_signs_after_some_seconds_and_the_others_while_the_database_is_away(
    database: Database, tmp_path: Path
) -> None:
    await database.prepare()
    keys, clock = ApiKeys(database), Clock()
    secrets = SigningSecrets(keys, secret=SECRET, most=3, clock=clock)
    assert await secrets.of("alice", "k1") == of_keys("k1")
    await keys.add(api_key("k2", "alice"))
    assert await secrets.of("alice", "k1") == of_keys("k1")
    clock.now = 5
    assert await secrets.of("alice", "k1") == of_keys("k1", "k2")
    await database.close()
    for file in tmp_path.iterdir():
        file.unlink()
    clock.now = 60
    assert await secrets.of("alice", "k1") == of_keys("k1", "k2")
