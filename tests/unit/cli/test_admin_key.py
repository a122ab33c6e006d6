from pathlib import Path

import pytest
import typer

from cli.admin_key import (
    ADMIN_KEY_FILE,
    CALLBACK_SECRET_FILE,
    ensure_admin_key,
    note_shown,
    with_keys,
    write_callback_secret,
)
from events.log import utc_now
from events.store.records import ApiKey, Scope
from local.embedded import with_secret
from serve_app.access.api_keys import ParsedKey, parse
from settings.settings import Settings
from storage.service_secret import webhook_secret


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(data_dir=tmp_path)


async def only_row(settings: Settings) -> ApiKey:
    [row] = await with_keys(settings.stores, lambda keys: keys.all())
    return row


def parsed(text: str | None) -> ParsedKey:
    key = parse(text or "")
    assert key is not None
    return key


class TestAdminKey:
    async def test_it_is_made_once(self, settings: Settings) -> None:
        text = await ensure_admin_key(settings.stores)
        note_shown(settings.stores)
        assert await ensure_admin_key(settings.stores) is None
        assert parsed(text).opens(await only_row(settings))
        assert (settings.stores.data_dir / ADMIN_KEY_FILE).read_text() == f"{text}\n"

    async def test_a_start_that_failed_after_making_it_leaves_it_to_be_shown(
        self, settings: Settings
    ) -> None:
        text = await ensure_admin_key(settings.stores)
        assert await ensure_admin_key(settings.stores) == text

    async def test_its_callback_secret_is_kept_beside_it(self, settings: Settings) -> None:
        stores = with_secret(settings).stores
        text = await ensure_admin_key(stores)
        secret = write_callback_secret(stores)
        path = stores.data_dir / CALLBACK_SECRET_FILE
        assert path.read_text() == f"{secret}\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert secret == webhook_secret(stores.secret_bytes, parsed(text).id)

    async def test_a_database_that_lost_it_is_told(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        text = await ensure_admin_key(settings.stores)
        note_shown(settings.stores)
        other = Settings.load(
            data_dir=tmp_path, database_url=f"sqlite+aiosqlite:///{tmp_path / 'other.sqlite3'}"
        )
        assert await ensure_admin_key(other.stores) is None
        row = await only_row(other)
        assert parsed(text).opens(row)
        assert row.scopes == frozenset(Scope)
        assert row.is_live(utc_now())

    async def test_one_that_was_revoked_stays_revoked(self, settings: Settings) -> None:
        await ensure_admin_key(settings.stores)
        key_id = (await only_row(settings)).id
        await with_keys(settings.stores, lambda keys: keys.revoke(key_id, utc_now()))
        await ensure_admin_key(settings.stores)
        assert not (await only_row(settings)).is_live(utc_now())

    async def test_a_file_that_holds_none_is_told(
        self, settings: Settings, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (settings.stores.data_dir / ADMIN_KEY_FILE).write_text("dk_broken\n")
        with pytest.raises(typer.Exit):
            await ensure_admin_key(settings.stores)
        assert "contains no key" in capsys.readouterr().err

    async def test_a_database_that_is_away_does_not_stop_the_start(
        self, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        await ensure_admin_key(settings.stores)
        note_shown(settings.stores)
        nobody = "postgresql+asyncpg://127.0.0.1:1/darkroom"
        away = Settings.load(data_dir=tmp_path, database_url=nobody)
        assert await ensure_admin_key(away.stores) is None
        assert "not checked" in capsys.readouterr().err
