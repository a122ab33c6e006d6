"""A database that a version before 0.2.0 wrote is refused and stays as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from events.errors import OlderData
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.records import Endpoint
from events.store.tables import DATA_FORMAT, OFFSETS
from settings.stores import SQLITE_FILE

ROOT = Path(__file__).parents[2]


async def make_older(database_url: str) -> None:
    """The tables without the row that 0.2.0 adds."""
    database = Database(database_url)
    await database.prepare()
    await database.execute(sa.delete(OFFSETS).where(OFFSETS.c.name == DATA_FORMAT))
    await database.close()


async def test_an_older_database_is_refused(database_url: str) -> None:
    await make_older(database_url)
    database = Database(database_url)
    with pytest.raises(OlderData, match=r"before 0\.2\.0"):
        await database.require_current()
    with pytest.raises(OlderData):
        await database.prepare()
    await database.close()


async def test_an_empty_and_a_prepared_database_are_current(database_url: str) -> None:
    database = Database(database_url)
    await database.require_current()
    await database.prepare()
    await database.require_current()
    await database.prepare()
    await database.close()


async def test_columns_and_indexes_that_an_earlier_version_lacked_are_added(
    database_url: str,
) -> None:
    database = Database(database_url)
    await database.prepare()
    await Endpoints(database).put(Endpoint("kept"))
    names = ("engine", "comfyui_args", "comfyui_allowed_nodes", "comfyui_max_jobs")
    for name in (*names, "comfyui_partner_nodes"):
        await database.execute(sa.text(f"ALTER TABLE endpoints DROP COLUMN {name}"))
    await database.execute(sa.text("DROP INDEX uploads_by_name"))
    await database.prepare()
    await database.execute(sa.text("DROP INDEX uploads_by_name"))
    added = Endpoint(
        "new",
        engine="comfyui",
        comfyui_dir="/srv",
        comfyui_args=("--lowvram",),
        comfyui_allowed_nodes=("A",),
        comfyui_max_jobs=2,
        comfyui_partner_nodes=True,
    )
    await Endpoints(database).put(added)
    assert await Endpoints(database).all() == [Endpoint("kept"), added]
    await database.close()


async def test_a_start_on_an_older_data_folder_ends_with_one_sentence(tmp_path: Path) -> None:
    await make_older(f"sqlite+aiosqlite:///{tmp_path / SQLITE_FILE}")
    before = {path.name for path in tmp_path.iterdir()}
    started = subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()", "up"],
        check=False,
        cwd=ROOT,
        env=os.environ | {"DARKROOM_DATA_DIR": str(tmp_path), "COLUMNS": "240"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert started.returncode == 1, started.stderr
    [line] = [each for each in started.stderr.splitlines() if "before 0.2.0" in each]
    assert "empty data folder" in line
    assert {path.name for path in tmp_path.iterdir()} == before
