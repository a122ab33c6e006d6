"""Processes that a killed predecessor left behind: found by a path on their command line."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def stop_leftovers(path: Path, *, patience_s: float = 5.0) -> None:
    """End every process that was started with `path`, or a file below it, as an argument."""
    give_up_at = time.monotonic() + patience_s
    number = signal.SIGTERM
    while pids := _started_with(str(path)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.05)
        number = signal.SIGKILL if time.monotonic() > give_up_at else signal.SIGCONT
    # SIGCONT in between: a process that is stopped only ends once it goes on.


def _started_with(path: str) -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _has_argument(entry, path)
    ]


def _has_argument(process: Path, path: str) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False  # it ended meanwhile, or is not ours
    return any(argument == path or argument.startswith(f"{path}/") for argument in arguments)
