"""The memory that the processes of a worker may take, so that the machine outlives what it runs."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

from engine.container_memory import container_memory

logger = logging.getLogger(__name__)

_SHARE = 0.75
_JOB_ACTORS_SHARE = 0.25
_JOB_ACTOR_BYTES = 100 * 1024**2


def limit_memory(size_bytes: int | None, *, device: str) -> None:
    """Let this process write to so much memory of its own; 0 is any, None the default of a device.

    Shared memory is not counted. An allocation beyond the limit fails, which is an error of the job
    that asked for it. Without one the kernel ends a process once the machine has no memory left,
    the engine first, for Ray gives its workers the highest `oom_score_adj`.
    """
    if size_bytes is None:
        size_bytes = default_bytes(device)
    if not size_bytes:
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))
    logger.info("memory is limited", extra={"action": "limit_memory", "size_bytes": size_bytes})


def default_bytes(device: str) -> int:
    """Three quarters of what the machine or the container has; 0, which is any, with a GPU.

    A GPU's driver maps memory by its own rules, and most of what a job takes is on the GPU.
    """
    return int(_SHARE * memory_bytes()) if device == "cpu" else 0


def job_actors_that_fit() -> int:
    """How many job actors a quarter of the machine's or the container's memory holds."""
    return max(1, int(_JOB_ACTORS_SHARE * memory_bytes()) // _JOB_ACTOR_BYTES)


def resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not say it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_bytes() -> int:
    """What the machine, or the container, has."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = container_memory()
    return machine_bytes if container is None else min(machine_bytes, container.limit_bytes)
