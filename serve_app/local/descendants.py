"""Processes that this one started, directly or not, and that must not outlive it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress

import psutil

logger = logging.getLogger(__name__)


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def end_processes(processes: Collection[psutil.Process], *, patience_s: float = 5.0) -> None:
    """Returns once they have ended: by themselves, or else killed once `patience_s` has passed."""
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            fields = {"action": "end_process", "pid": process.pid, "command": process.name()}
            logger.warning("a process did not end by itself", extra=fields)
            process.kill()
    psutil.wait_procs(alive, timeout=patience_s)
