"""Measures memory, and limits the memory of an engine, so that no job exhausts the machine."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

from engine.interface import container_memory

logger = logging.getLogger(__name__)

_SHARE = 0.75
_JOB_ACTORS_SHARE = 0.25
_JOB_ACTOR_BYTES = 100 * 1024**2


def limit_memory(size_bytes: int | None, *, device: str) -> None:
    """Limit the private memory of this process.

    A size of 0 means no limit, and None means the default of the device. Shared memory does not
    count. An allocation beyond the limit fails, and so does the job that needs the memory. Without
    a limit, the kernel would kill the engine when the machine has no memory left, because Ray gives
    its processes the highest `oom_score_adj`.
    """
    if size_bytes is None:
        size_bytes = default_bytes(device)
    if not size_bytes:
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))
    logger.info(
        "the memory of the process is limited",
        extra={"action": "limit_memory", "size_bytes": size_bytes},
    )


def default_bytes(device: str) -> int:
    """Return three quarters of the memory for a CPU, and 0 (no limit) for a GPU.

    The driver of a GPU maps much memory that it does not use, and most memory of a job is on the
    GPU.
    """
    return int(_SHARE * memory_bytes()) if device == "cpu" else 0


def job_actors_that_fit() -> int:
    """Return the number of job actors that fit into a quarter of the memory."""
    return max(1, int(_JOB_ACTORS_SHARE * memory_bytes()) // _JOB_ACTOR_BYTES)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system is not Linux."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_bytes() -> int:
    """Return the memory of the machine, or the limit of the container if it is lower, in bytes."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    container = container_memory()
    return machine_bytes if container is None else min(machine_bytes, container.limit_bytes)
