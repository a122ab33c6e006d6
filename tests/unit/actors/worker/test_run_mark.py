"""The mark of a run, as its job actor and the engine see it."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from actors.worker.run_mark import RunMark, RunMarkWriter, remove_stale_marks


def test_a_mark_for_which_the_disk_has_no_room_says_that_the_run_was_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with RunMark.new() as mark, closing(RunMarkWriter(mark.path)) as writer:
        writer.set_active(False)
        assert mark.is_active


def test_the_engine_says_whether_the_device_works_for_it(tmp_path: Path) -> None:
    with RunMark.new() as mark:
        path = mark.path
        assert not mark.is_active
        with closing(RunMarkWriter(path)) as writer:
            assert mark.is_active
            writer.set_active(False)
            assert not mark.is_active
            writer.set_active(True)
            assert mark.is_active
    assert not path.exists()
    with closing(RunMarkWriter(tmp_path / "gone")) as writer:
        writer.set_active(True)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_closed_says_nothing_more() -> None:
    with RunMark.new() as mark:
        writer = RunMarkWriter(mark.path)
        writer.close()
        writer.set_active(False)
        assert mark.is_active


def test_what_it_says_outlives_a_process_that_is_killed() -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from actors.worker.run_mark import RunMarkWriter
        RunMarkWriter(Path(sys.argv[1])).set_active(False)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with RunMark.new() as mark:
        command = [sys.executable, "-c", textwrap.dedent(code), str(mark.path)]
        ended = subprocess.run(command, check=False, timeout=30)
        assert ended.returncode == -signal.SIGKILL
        assert not mark.is_active


def test_marks_of_processes_that_have_ended_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    (tmp_path / f"darkroom-run-{process.pid}-a").touch()
    (tmp_path / "darkroom-run-other").touch()
    with RunMark.new() as mark:
        remove_stale_marks()
        assert mark.path.exists()
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {mark.path.name, "darkroom-run-other"}


def test_a_run_that_may_be_joined_says_so_while_it_is_active_or_its_mark_is_gone() -> None:
    with RunMark.new() as mark, closing(RunMarkWriter(mark.path)) as writer:
        assert not mark.may_be_joined
        writer.note_joined()
        assert (mark.is_active, mark.may_be_joined) == (True, True)
        writer.set_active(False)
        assert not mark.is_active
        writer.set_active(True)
        assert (mark.is_active, mark.may_be_joined) == (True, True)
        mark.path.unlink()
        assert (mark.is_active, mark.may_be_joined) == (True, True)
