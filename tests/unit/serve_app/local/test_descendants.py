import os
import subprocess
import sys

import psutil
import pytest

from serve_app.local.descendants import descendants, end_processes


def test_one_that_ends_by_itself_is_waited_for() -> None:
    before = descendants()
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        (started,) = descendants() - before
        assert process.stdin is not None
        process.stdin.close()
        end_processes([started])
        assert not started.is_running()


def test_one_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stuck = psutil.Process(process.pid)
        end_processes([stuck], patience_s=0.1)
        assert not stuck.is_running()
    assert caplog.messages == ["a process did not end by itself"]


def test_those_that_ended_long_ago_are_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        ended = psutil.Process(process.pid)
    end_processes([ended])
    assert os.getpid() not in {each.pid for each in descendants()}
