"""Ends servers that a killed `darkroom up` left running.

They are found by their name and by a path on their command line.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

logger = logging.getLogger(__name__)

_OURS = {"haproxy", "nats-server", "raylet", "gcs_server"}
_LAUNCHER = "serve_app.local.haproxy"
"""The module that becomes HAProxy."""


def stop_stale_processes(path: Path, *, patience_s: float = 5.0) -> None:
    """End every server of ours that has `path`, or a file below it, among its arguments.

    A process that does not end in twice `patience_s`, or that may not be ended, is logged and left.
    """
    kill_at = time.monotonic() + patience_s
    give_up_at = kill_at + patience_s
    number = signal.SIGTERM
    not_ours: set[int] = set()
    while pids := _started_with(str(path)) - not_ours:
        if time.monotonic() > give_up_at:
            _warn("a stale process does not end", pids)
            return
        not_ours |= {pid for pid in pids if not _may_signal(pid, number)}
        time.sleep(0.05)
        # SIGCONT meanwhile: a process that is stopped ends only once it goes on.
        number = signal.SIGKILL if time.monotonic() > kill_at else signal.SIGCONT
    if not_ours:
        _warn("a stale process is another user's", not_ours)


def _may_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended meanwhile
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
        return False  # it ended meanwhile, or is not ours
    is_ours = Path(arguments[0]).name in _OURS or _LAUNCHER in arguments
    return is_ours and any(_is_below(argument, path) for argument in arguments[1:])


def _is_below(argument: str, path: str) -> bool:
    """Whether an argument, or the value of an option, is `path` or a file below it."""
    value = argument.partition("=")[2] if argument.startswith("--") else argument
    return value == path or value.startswith(f"{path}/")
