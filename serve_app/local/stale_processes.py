"""Servers that a killed predecessor left behind: found by name and a path on their command line."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

logger = logging.getLogger(__name__)

_OURS = {"haproxy", "nats-server"}


def stop_leftovers(path: Path, *, patience_s: float = 5.0) -> None:
    """End every server of ours that was started with `path`, or a file below it, as an argument.

    Those that may not be ended, or will not end, are logged and left.
    """
    kill_at = time.monotonic() + patience_s
    give_up_at = kill_at + patience_s
    number = signal.SIGTERM
    foreign: set[int] = set()
    while pids := _started_with(str(path)) - foreign:
        if time.monotonic() > give_up_at:
            _complain("a leftover does not end", pids)
            return
        foreign |= {pid for pid in pids if not _may_signal(pid, number)}
        time.sleep(0.05)
        number = signal.SIGKILL if time.monotonic() > kill_at else signal.SIGCONT
    # SIGCONT in between: a process that is stopped only ends once it goes on.
    if foreign:
        _complain("a leftover is another user's", foreign)


def _may_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended meanwhile
    except PermissionError:
        return False
    return True


def _complain(message: str, pids: set[int]) -> None:
    logger.warning(message, extra={"action": "stop_leftovers", "pids": sorted(pids)})


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
    return Path(arguments[0]).name in _OURS and any(
        argument == path or argument.startswith(f"{path}/") for argument in arguments[1:]
    )
