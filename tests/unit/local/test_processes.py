"""Servers of an earlier start, and children of this process, are ended."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from local.processes import descendants, end_processes, end_unused_processes, stop_stale_processes

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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nats-server", ["-f", "{}"]),
        ("nats-server", ["-f", "{}/a.conf"]),
        ("/usr/lib/bin/haproxy", ["-f", "{}/a.conf"]),
        ("python", ["local.haproxy", "{}/limits.cfg"]),  # which becomes HAProxy
        ("raylet", ["--session_dir={}/session_1"]),
        ("gcs_server", ["--session-dir={}/session_1"]),
    ],
)
def test_a_server_of_ours_is_ended(tmp_path: Path, name: str, arguments: list[str]) -> None:
    with running(name, *(each.format(tmp_path) for each in arguments)) as process:
        stop_stale_processes(tmp_path)
        assert process.wait(60) < 0


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
    assert caplog.messages == ["a process of an earlier start belongs to another user"]


def test_what_does_not_end_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running("nats-server", str(tmp_path)), caplog.at_level(logging.WARNING):
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        stop_stale_processes(tmp_path, patience_s=0.05)
        monkeypatch.undo()
    assert caplog.messages == ["a process of an earlier start does not end"]


def test_one_that_ends_by_itself_is_waited_for() -> None:
    before = descendants()
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        (started,) = descendants() - before
        assert process.stdin is not None
        process.stdin.close()
        end_processes([started])
        assert not started.is_running()


def test_those_that_ended_long_ago_are_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        ended = psutil.Process(process.pid)
    end_processes([ended])
    end_unused_processes([ended])
    assert os.getpid() not in {each.pid for each in descendants()}


def test_one_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stuck = psutil.Process(process.pid)
        end_processes([stuck], patience_s=0.1)
        assert not stuck.is_running()
    assert caplog.messages == ["a process did not end by itself"]


def test_those_that_are_not_used_end_and_the_others_go_on(tmp_path: Path) -> None:
    scripts = [
        "ray/dashboard/dashboard.py",
        "ray/_private/log_monitor.py",
        "ray/dashboard/agent.py",
    ]
    with ExitStack() as stack:
        started = []
        for script in scripts:
            path = tmp_path / script
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("print(flush=True); input()")
            command = [sys.executable, "-u", str(path)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # only now is it sure to have its own command line
            started.append(psutil.Process(process.pid))
        end_unused_processes(started)
        assert [each.is_running() for each in started] == [False, False, True]
