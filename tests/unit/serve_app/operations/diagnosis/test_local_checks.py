"""What is looked at on this machine: settings, models, image store, disks, database, Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from engine.graph.models_folder import ModelsFolder
from events.log import utc_now
from events.store.keys import ApiKeys
from events.store.records import Endpoint, Scope
from serve_app.access.api_keys import mint
from serve_app.operations.diagnosis.database_check import DatabaseCheck
from serve_app.operations.diagnosis.findings import Check, Finding, Level
from serve_app.operations.diagnosis.ray_check import RayCheck, too_large
from serve_app.operations.diagnosis.setup_check import ModelsCheck, SettingsCheck
from serve_app.operations.diagnosis.store_check import ImageStoreCheck, RoomCheck
from settings.stores import SQLITE_FILE, StoreSettings
from tests.support.database import database_in


async def only(check: Check) -> Finding:
    [found] = await check.run()
    return found


def stores(folder: Path, **members: Any) -> StoreSettings:
    return StoreSettings(data_dir=folder, **members)


async def test_a_variable_that_is_no_setting_and_a_short_secret_are_told(tmp_path: Path) -> None:
    assert (await only(SettingsCheck(stores(tmp_path), wrong=()))).level is Level.OK
    short = stores(tmp_path, secret=SecretStr("short"))
    variable, secret = await SettingsCheck(short, wrong=["DARKROOM_A is no setting."]).run()
    assert (variable.level, secret.level) == (Level.WARNING, Level.ERROR)
    assert "short" not in secret.what.split("shorter")[0]


async def test_models_are_counted_and_pickled_ones_told(tmp_path: Path) -> None:
    check = ModelsCheck(ModelsFolder(tmp_path, ttl_s=0))
    assert (await only(check)).level is Level.ERROR
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "a.safetensors").touch()
    found = await only(check)
    assert (found.level, "1 checkpoints" in found.what) == (Level.OK, True)
    (tmp_path / "checkpoints" / "b.ckpt").touch()
    _, pickled = await check.run()
    assert (pickled.level, "b.ckpt" in pickled.what) == (Level.WARNING, True)


async def test_a_folder_of_images_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert (await only(ImageStoreCheck(stores(tmp_path)))).level is Level.NOTE
    (tmp_path / "images").mkdir()
    assert (await only(ImageStoreCheck(stores(tmp_path)))).level is Level.OK
    assert [each for each in (tmp_path / "images").rglob("*") if each.is_file()] == []


async def test_a_store_that_cannot_be_used_is_told_without_its_password(tmp_path: Path) -> None:
    found = await only(ImageStoreCheck(stores(tmp_path, images_url="ftp://u:hidden@host/a")))
    assert found.level is Level.ERROR
    assert "hidden" not in f"{found.what} {found.remedy}"


async def test_the_room_of_a_folder_that_is_not_made_yet_is_told(tmp_path: Path) -> None:
    found = await only(RoomCheck([tmp_path / "data", tmp_path / "data" / "images"]))
    assert "free at" in found.what


async def test_a_database_is_told_that_is_missing_empty_or_without_keys(tmp_path: Path) -> None:
    check = DatabaseCheck(stores(tmp_path))
    assert (await only(check)).level is Level.NOTE
    (tmp_path / SQLITE_FILE).touch()
    tables, clock = await check.run()
    assert (tables.level, clock.level) == (Level.ERROR, Level.OK)
    async with database_in(tmp_path) as database:
        assert (await check.run())[0].level is Level.WARNING
        _, key = mint("alice", "alice", [Scope.READ], created_at=utc_now())
        await ApiKeys(database).add(key)
        assert [each.level for each in await check.run()] == [Level.OK, Level.OK]


async def test_a_database_that_cannot_be_reached_is_told_without_its_password(
    tmp_path: Path,
) -> None:
    url = SecretStr("postgresql+asyncpg://user:hidden@127.0.0.1:9/darkroom")
    found = await only(DatabaseCheck(stores(tmp_path, database_url=url)))
    assert found.level is Level.ERROR
    assert "hidden" not in found.what


async def test_a_ray_that_nobody_started_is_not_asked_for(tmp_path: Path) -> None:
    assert (await only(RayCheck(None, stores(tmp_path)))).level is Level.NOTE


@pytest.mark.parametrize(
    ("members", "fits"),
    [
        ({"gpus": 0}, True),
        ({"gpus": None}, True),
        ({"gpus": 1}, False),
        ({"gpus": 0, "cpus": 9}, False),
        ({"gpus": 0, "resources": {"fast_disk": 1}}, False),
    ],
)
def test_an_endpoint_is_told_for_which_no_node_has_room(
    members: dict[str, Any], fits: bool
) -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 8.0, "memory": 1e9}]
    assert (too_large([Endpoint("portraits", **members)], nodes) == []) == fits
