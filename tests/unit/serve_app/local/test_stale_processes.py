import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from serve_app.local.stale_processes import stop_stale_processes

SHELL = shutil.which("sh") or "/bin/sh"


@contextmanager
def running(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process called `name` that waits for its input."""
    with subprocess.Popen(
        [name, "-c", "read line", *arguments], executable=SHELL, stdin=subprocess.PIPE
    ) as process:
        try:
            command_line = Path(f"/proc/{process.pid}/cmdline")
            while not command_line.read_bytes():
                time.sleep(0.001)  # the kernel still lays it out
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["nats-server", "/usr/lib/bin/haproxy"])
@pytest.mark.parametrize("below", ["", "/a.conf"])
def test_a_server_of_ours_is_ended(tmp_path: Path, name: str, below: str) -> None:
    with running(name, "-f", f"{tmp_path}{below}") as process:
        stop_stale_processes(tmp_path)
        assert process.wait(5) < 0


@pytest.mark.parametrize(
    ("name", "option"), [("raylet", "--session_dir"), ("gcs_server", "--session-dir")]
)
def test_ray_is_found_by_the_values_of_its_options(tmp_path: Path, name: str, option: str) -> None:
    with running(name, f"{option}={tmp_path}/session_1") as process:
        stop_stale_processes(tmp_path)
        assert process.wait(5) < 0


def test_what_is_about_to_become_haproxy_is_ended(tmp_path: Path) -> None:
    with running("python", "serve_app.local.haproxy", f"{tmp_path}/limits.cfg") as process:
        stop_stale_processes(tmp_path)
        assert process.wait(5) < 0


def test_no_other_process_is_touched(tmp_path: Path) -> None:
    with ExitStack() as stack:
        others = [
            stack.enter_context(running(name, argument))
            for name, argument in (
                ("vim", f"{tmp_path}/a.conf"),
                ("tail", str(tmp_path)),
                ("nats-server", f"{tmp_path}-2/a.conf"),
            )
        ]
        stop_stale_processes(tmp_path)
        assert [process.poll() for process in others] == [None] * 3


def test_what_may_not_be_ended_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(pid: int, number: int) -> NoReturn:
        raise PermissionError

    with running("nats-server", str(tmp_path)), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(os, "kill", refuse)
        stop_stale_processes(tmp_path)
        monkeypatch.undo()
    assert caplog.messages == ["a stale process is another user's"]


def test_what_does_not_end_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running("nats-server", str(tmp_path)), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        stop_stale_processes(tmp_path, patience_s=0.05)
        monkeypatch.undo()
    assert caplog.messages == ["a stale process does not end"]
