"""Ends the processes of a local Ray that nobody here uses, and whose start cannot be declined."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import psutil

_UNUSED = (
    "ray/autoscaler/_private/monitor.py",  # asks for nodes, and this cluster gets none
    "ray/dashboard/dashboard.py",  # without its pages it tells statistics, which are turned off
    "ray/_private/log_monitor.py",  # sends what workers print to a driver that wants none of it
)
"""By their scripts. Each has as much memory as an actor, and wakes several times a second."""

_END_TIMEOUT_S = 5.0
"""A killed process may still hang in the kernel; nobody waits for that."""


def end_unused_processes(processes: Collection[psutil.Process]) -> None:
    """End those of Ray's processes that are not used. They keep nothing, and stay ended."""
    killed = []
    for process in processes:
        with suppress(psutil.Error):  # it ended meanwhile
            if any(argument.endswith(_UNUSED) for argument in process.cmdline()):
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=_END_TIMEOUT_S)
