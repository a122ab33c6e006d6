import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil

from serve_app.local.unused_processes import end_unused_processes


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


def test_one_that_ended_meanwhile_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        ended = psutil.Process(process.pid)
    end_unused_processes([ended])
