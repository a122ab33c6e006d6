"""All checks together: their order, one that hangs, and clocks that differ."""

from __future__ import annotations

import asyncio
import fcntl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from serve_app.local.embedded import is_up
from serve_app.operations.diagnosis.database_check import DatabaseCheck
from serve_app.operations.diagnosis.examination import checks_of, examine
from serve_app.operations.diagnosis.findings import Finding, Level, clock_finding, in_daemon, size
from settings.settings import Settings
from settings.stores import StoreSettings

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
    first, second = await examine(checks, patience_s=0.05)
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


def test_a_clock_may_differ_a_little() -> None:
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
