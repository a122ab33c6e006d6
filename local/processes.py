"""Ends processes of this machine: servers of an earlier start, and children of this process."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

_OUR_PROGRAMS = {"haproxy", "nats-server", "raylet", "gcs_server"}
_LAUNCHER = "local.haproxy"
"""The module of HAProxy's launcher."""
_UNUSED = (
    # The monitor requests more nodes, but the cluster of `darkroom up` has only one node.
    "ray/autoscaler/_private/monitor.py",
    # The pages of the dashboard are not served here, and its statistics are turned off.
    "ray/dashboard/dashboard.py",
    # This process sends the output of workers to the driver, which ignores it.
    "ray/_private/log_monitor.py",
)
"""Scripts of processes that Ray always starts and Darkroom does not need. Each process uses as much
memory as an actor, and uses the CPU several times a second.
"""
_END_TIMEOUT_S = 5.0
"""Seconds to wait for the end of a killed process, which may hang in the kernel."""


def stop_stale_processes(path: Path, *, patience_s: float = 5.0) -> None:
    """End every server of Darkroom that has `path`, or a file below it, among its arguments.

    Such servers remain after a killed `darkroom up`. After `patience_s` seconds they are killed. A
    process that cannot be ended is logged.
    """
    kill_at = time.monotonic() + patience_s
    give_up_at = kill_at + patience_s
    number = signal.SIGTERM
    not_ours: set[int] = set()
    while pids := _started_with(str(path)) - not_ours:
        if time.monotonic() > give_up_at:
            _warn("a process of an earlier start does not end", pids)
            return
        not_ours |= {pid for pid in pids if not _may_signal(pid, number)}
        time.sleep(0.05)
        # A process that was suspended handles SIGTERM only after SIGCONT.
        number = signal.SIGKILL if time.monotonic() > kill_at else signal.SIGCONT
    if not_ours:
        _warn("a process of an earlier start belongs to another user", not_ours)


def _may_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # The process has ended.
    except PermissionError:
        return False
    return True


def _warn(message: str, pids: set[int]) -> None:
    logger.warning(message, extra={"action": "stop_stale_processes", "pids": sorted(pids)})


def _started_with(path: str) -> set[int]:
    return {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_ours(entry, path)
    }


def _is_ours(process: Path, path: str) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False  # The process has ended, or belongs to another user.
    is_ours = Path(arguments[0]).name in _OUR_PROGRAMS or _LAUNCHER in arguments
    return is_ours and any(_is_below(argument, path) for argument in arguments[1:])


def _is_below(argument: str, path: str) -> bool:
    """Return whether an argument, or the value of an option, is `path` or a file below it."""
    value = argument.partition("=")[2] if argument.startswith("--") else argument
    return value == path or value.startswith(f"{path}/")


def descendants() -> set[psutil.Process]:
    """Return all processes that this process started, directly or indirectly."""
    return set(psutil.Process().children(recursive=True))


def end_processes(processes: Collection[psutil.Process], *, patience_s: float = 5.0) -> None:
    """Wait until the processes have ended. Kill those that still run after `patience_s` seconds."""
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            fields = {"action": "end_process", "pid": process.pid, "command": process.name()}
            logger.warning("a process did not end by itself", extra=fields)
            process.kill()
    psutil.wait_procs(alive, timeout=patience_s)


def end_unused_processes(processes: Collection[psutil.Process]) -> None:
    """Kill those of the processes that Darkroom does not need. Ray does not restart them."""
    killed = []
    for process in processes:
        with suppress(psutil.Error):  # The process may have ended.
            if any(argument.endswith(_UNUSED) for argument in process.cmdline()):
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=_END_TIMEOUT_S)
