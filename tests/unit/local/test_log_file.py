"""The lines of many processes in one file."""

from __future__ import annotations

import errno
import logging
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from local.log_file import NAME, LogFile, Show

FIRST, SECOND = "worker-a-1.err", "worker-b-2.err"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "session" / "logs"
    folder.mkdir(parents=True)
    return folder


class Made(Protocol):
    def __call__(self, *, max_bytes: int = 10**6, show: Show | None = None) -> LogFile: ...


@pytest.fixture
def made(source: Path) -> Generator[Made]:
    with ExitStack() as stack:

        def make(*, max_bytes: int = 10**6, show: Show | None = None) -> LogFile:
            folder = source.parent / "data"
            log = LogFile(source, folder, max_bytes=max_bytes, files=2, show=show)
            stack.callback(log.close)
            return log

        yield make


def copied(source: Path) -> list[str]:
    return (source.parent / "data" / NAME).read_text().splitlines()


def add(source: Path, name: str, text: str) -> None:
    with (source / name).open("a") as file:
        file.write(text)


def test_each_line_is_copied_once_when_it_has_ended(source: Path, made: Made) -> None:
    shown: list[str] = []
    log = made(show=shown.append)
    log.copy()
    add(source, FIRST, ":job_id:01000000\n:actor_name:Engine\na began\na en")
    add(source, SECOND, "b began\n")
    add(source, "worker-b-2.out", "printed\n")
    add(source, "raylet.err", "of Ray\n")
    log.copy()
    log.copy()
    assert sorted(copied(source)) == ["a began", "b began"]
    add(source, FIRST, "ded\n")
    log.copy()
    assert copied(source)[2:] == ["a ended"]
    assert sorted(shown) == sorted(copied(source))


def test_what_was_written_last_is_there_at_the_end(source: Path, made: Made) -> None:
    log = made()
    log.start()
    add(source, FIRST, "a began\nkilled amid")
    log.close()
    assert copied(source) == ["a began", "killed amid"]


def test_where_there_is_no_session_yet_it_waits(source: Path, made: Made) -> None:
    log = made()
    source.rmdir()
    log.copy()
    source.mkdir()
    add(source, FIRST, "began\n")
    log.copy()
    assert copied(source) == ["began"]


def test_it_is_moved_aside_before_it_grows_large(source: Path, made: Made) -> None:
    log = made(max_bytes=1000)
    for number in range(100):
        add(source, FIRST, f"line {number} {'x' * 90}\n")
        log.copy()
    sizes = {path.name: path.stat().st_size for path in (source.parent / "data").iterdir()}
    assert sizes.keys() == {NAME, f"{NAME}.1", f"{NAME}.2"}
    assert max(sizes.values()) <= 1000
    assert copied(source)[-1].startswith("line 99 ")


def test_a_line_without_an_end_is_cut(source: Path, made: Made) -> None:
    log = made()
    add(source, FIRST, "x" * 300_000)
    log.copy()
    assert sum(map(len, copied(source))) >= 256 * 1024


def test_a_file_that_was_begun_anew_is_read_from_its_beginning(source: Path, made: Made) -> None:
    log = made()
    add(source, FIRST, "a long line\n")
    log.copy()
    (source / FIRST).write_text("short\n")
    log.copy()
    assert copied(source) == ["a long line", "short"]


def test_a_reader_who_has_gone_and_a_full_disk_stop_nothing(
    source: Path,
    made: Made,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(_line: str) -> None:
        raise BrokenPipeError

    log = made(show=gone)
    add(source, FIRST, "1\n2\n")
    log.copy()
    add(source, FIRST, "3\n")
    log.copy()
    assert copied(source) == ["1", "2", "3"]

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(logging.StreamHandler, "flush", full)
    add(source, FIRST, "4\n")
    log.copy()
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_a_terminal_that_cannot_show_a_line_stops_nothing(source: Path, made: Made) -> None:
    shown: list[bytes] = []
    log = made(show=lambda line: shown.append(line.encode("ascii")))
    add(source, FIRST, "1\nété\n3\n")
    log.copy()
    assert copied(source) == ["1", "été", "3"]
    assert shown == [b"1", b"3"]


def test_a_disk_that_is_full_to_the_end_keeps_nobody_from_stopping(
    source: Path, made: Made
) -> None:
    log = made()
    (source.parent / "data" / NAME).unlink()
    (source.parent / "data" / NAME).symlink_to("/dev/full")
    log._file.close()
    add(source, FIRST, "1\n")
    log.copy()
    log.close()
