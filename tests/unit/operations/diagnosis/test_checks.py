"""The checks of `doctor`: each check, all checks, a check that hangs, and differing clocks."""

from __future__ import annotations

import asyncio
import fcntl
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import SecretStr

from engine.graph.models_folder import ModelsFolder
from events.log import utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import Endpoint, Scope
from local.embedded import is_up
from operations.diagnosis.cluster_checks import RayCheck, too_large
from operations.diagnosis.examination import ModelsCheck, SettingsCheck, checks_of, examine
from operations.diagnosis.findings import Check, Finding, Level, clock_finding, in_daemon, size
from operations.diagnosis.network_checks import CallbackCheck, HttpCheck
from operations.diagnosis.store_checks import DatabaseCheck, DiskSpaceCheck, ImageStoreCheck
from serve_app.access.api_keys import mint
from settings.callbacks import CallbackSettings
from settings.http import HttpSettings
from settings.settings import Settings
from settings.stores import SQLITE_FILE, StoreSettings
from tests.support.database import prepared, sqlite_url
from tests.support.edge import running_edge
from tests.support.patience import FACTOR
from tests.support.polling import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Says:
    def __init__(self, part: str, *, after: asyncio.Event | None = None) -> None:
        self.part = part
        self._after = after

    async def run(self) -> list[Finding]:
        if self._after is not None:
            await self._after.wait()
        return [Finding(self.part, Level.OK, "well")]


async def test_one_that_hangs_is_told_and_holds_up_no_other() -> None:
    checks = [Says("first", after=asyncio.Event()), Says("second")]
    first, second = await examine(checks, patience_s=0.3 * FACTOR)
    assert (first.part, first.level) == ("first", Level.ERROR)
    assert first.remedy is not None
    assert first.hangs
    assert second == Finding("second", Level.OK, "well")


async def test_one_that_fails_is_told_without_what_it_says(tmp_path: Path) -> None:
    url = SecretStr("nowhere://user:hidden@host/darkroom")
    check = DatabaseCheck(StoreSettings(data_dir=tmp_path, database_url=url))
    failed, second = await examine([check, Says("second")])
    assert (failed.part, failed.level) == ("database", Level.ERROR)
    assert "hidden" not in f"{failed.what} {failed.remedy}"
    assert second.level is Level.OK


def test_nothing_waits_for_a_mount_that_hangs() -> None:
    released = threading.Event()

    async def look() -> bool:
        try:
            async with asyncio.timeout(0.05):
                await in_daemon(released.wait)
        except TimeoutError:
            return True
        return False

    assert asyncio.run(look())  # which waits for the threads of its loop
    released.set()


async def test_an_error_in_such_a_thread_is_that_of_whoever_waits() -> None:
    with pytest.raises(FileNotFoundError):
        await in_daemon(Path("/none").stat)
    assert await in_daemon(lambda: 7) == 7


@pytest.mark.parametrize(("ahead_s", "said"), [(5, "5.0 s ahead of"), (-61, "61.0 s behind")])
def test_a_clock_that_differs_is_told(ahead_s: float, said: str) -> None:
    found = clock_finding("NATS", NOW + timedelta(seconds=ahead_s), NOW)
    assert found.is_wrong
    assert said in found.what
    assert not clock_finding("NATS", NOW + timedelta(seconds=1), NOW).is_wrong


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (2048, "2 KiB"), (3 * 1024**4, "3 TiB")])
def test_sizes_are_for_people(count: int, shown: str) -> None:
    assert size(count) == shown


async def test_a_machine_on_which_nothing_was_started_is_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    for name in ("DARKROOM_PARITY_DIR", "DARKROOM_SCHEMAS_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.safetensors").touch()
    folders = {"data_dir": tmp_path / "data", "models_dir": tmp_path / "models"}
    findings = await examine(checks_of(Settings.load(port=free_port, **folders)))
    assert {each.part for each in findings} == {
        *("settings", "ports", "event log", "database", "image store", "models", "disk"),
        *("Ray", "callbacks"),
    }
    assert [each for each in findings if each.is_wrong and each.part != "disk"] == []
    assert not (tmp_path / "data").exists()


def test_whether_a_service_is_up_is_seen_by_its_lock(tmp_path: Path) -> None:
    assert not is_up(tmp_path)
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_up(tmp_path)
    assert not is_up(tmp_path)


async def only(check: Check) -> Finding:
    [found] = await check.run()
    return found


def stores(folder: Path, **members: Any) -> StoreSettings:
    return StoreSettings(data_dir=folder, **members)


async def test_a_variable_that_is_no_setting_and_a_short_secret_are_told(tmp_path: Path) -> None:
    assert (await only(SettingsCheck(stores(tmp_path), wrong=()))).level is Level.OK
    short = stores(tmp_path, secret=SecretStr("short"))
    variable, secret = await SettingsCheck(short, wrong=["DARKROOM_A is not a setting."]).run()
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


async def test_the_room_of_a_folder_that_is_not_made_yet_is_told(tmp_path: Path) -> None:
    found = await only(DiskSpaceCheck([tmp_path / "data", tmp_path / "data" / "images"]))
    assert "are free at" in found.what


async def test_a_database_is_told_that_is_missing_empty_or_without_keys(tmp_path: Path) -> None:
    check = DatabaseCheck(stores(tmp_path))
    assert (await only(check)).level is Level.NOTE
    (tmp_path / SQLITE_FILE).touch()
    tables, clock = await check.run()
    assert (tables.level, clock.level) == (Level.ERROR, Level.OK)
    async with prepared(Database(sqlite_url(tmp_path))) as database:
        assert (await check.run())[0].level is Level.WARNING
        _, key = mint("alice", "alice", [Scope.READ], created_at=utc_now())
        await ApiKeys(database).add(key)
        assert [each.level for each in await check.run()] == [Level.OK, Level.OK]


@pytest.mark.parametrize(
    ("check", "member", "url"),
    [
        (ImageStoreCheck, "images_url", "ftp://u:hidden@host/a"),
        (DatabaseCheck, "database_url", "postgresql+asyncpg://user:hidden@127.0.0.1:9/darkroom"),
    ],
)
async def test_a_store_that_cannot_be_used_is_told_without_its_password(
    tmp_path: Path, check: type[ImageStoreCheck | DatabaseCheck], member: str, url: str
) -> None:
    found = await only(check(StoreSettings.model_validate({"data_dir": tmp_path, member: url})))
    assert found.level is Level.ERROR
    assert "hidden" not in f"{found.what} {found.remedy}"


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
def test_an_endpoint_is_told_that_fits_on_no_node(members: dict[str, Any], fits: bool) -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 8.0, "memory": 1e9}]
    assert (too_large([Endpoint("portraits", **members)], nodes) == []) == fits


LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.fixture
async def other_port() -> AsyncIterator[int]:
    """Of a program that is no Darkroom, and answers every call alike."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def http(port: int, *, is_up: bool = False) -> Finding:
    [found] = await HttpCheck(HttpSettings(port=port), is_up=is_up).run()
    return found


async def callback(url: str | None, settings: CallbackSettings | None = None) -> Finding:
    opened = settings or CallbackSettings(allow_networks=LOOPBACK)
    [found] = await CallbackCheck(opened, url=url).run()
    return found


async def test_a_port_is_told_that_another_program_has(other_port: int) -> None:
    found = await http(other_port)
    assert (found.level, str(other_port) in found.what) == (Level.ERROR, True)
    assert "--port" in str(found.remedy)


async def test_a_port_may_be_free(free_port: int) -> None:
    assert (await http(free_port)).level is Level.NOTE
    assert (await http(free_port, is_up=True)).level is Level.ERROR


async def test_a_running_service_says_whether_it_is_ready(tmp_path: Path, free_port: int) -> None:
    async with running_edge(tmp_path) as edge:
        config = uvicorn.Config(edge.app, port=free_port, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        assert (await http(free_port, is_up=True)).level is Level.OK
        server.should_exit = True
        await serving


async def test_a_receiver_that_is_named_is_connected_to(other_port: int, free_port: int) -> None:
    assert (await callback(None)).level is Level.NOTE
    assert (await callback(f"http://127.0.0.1:{other_port}/hook")).level is Level.OK
    found = await callback(f"http://127.0.0.1:{free_port}/hook")
    assert (found.level, "firewall" in str(found.remedy)) == (Level.ERROR, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.0.0.1/hook", "_ALLOW_NETWORKS"),
        ("ftp://example.com/hook", "_ALLOW_NETWORKS"),
        ("http://nowhere.invalid/hook", "name server"),
    ],
)
async def test_an_address_that_is_refused_is_told_with_what_decides(url: str, said: str) -> None:
    found = await callback(url, CallbackSettings())
    assert (found.level, said in str(found.remedy)) == (Level.ERROR, True)


async def test_a_proxy_is_connected_to(other_port: int, free_port: int) -> None:
    def through(port: int) -> CallbackSettings:
        return CallbackSettings.model_validate({"proxy": f"http://user:hidden@127.0.0.1:{port}"})

    assert (await callback(None, through(other_port))).level is Level.OK
    found = await callback(None, through(free_port))
    assert (found.level, "hidden" in found.what) == (Level.ERROR, False)
