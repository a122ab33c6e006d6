"""The resources of a service's processes by part: CPU, memory, files and threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, TypeVar

import psutil

N = TypeVar("N", int, float)
Cpu: TypeAlias = Mapping[tuple[str, int], float]
"""Seconds of CPU time, by part and process id."""

OTHERS = "Ray, the rest"
PARTS: Mapping[str, str] = {
    r"^ray::ServeReplica:darkroom:Api": "HTTP replicas",
    r"^ray::RoleProcess": "roles",
    r"^ray::JobProcess": "job actors",
    r"^ray::EngineProcess": "engines",
    r"^ray::ServeController": "Serve's controller",
    r"^\S*/haproxy ": "HAProxy",
    r"^\S*/nats-server ": "nats-server",
    r"^\S+ \S*/darkroom up": "darkroom up",
}
"""The parts of a service, by patterns of their command lines."""
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, OSError)
"""Errors that occur if a process ends while its figures are read."""


def part_of(command: Sequence[str]) -> str:
    """Return the part to which a process belongs."""
    line = " ".join(command) + " "
    found = (part for pattern, part in PARTS.items() if re.search(pattern, line))
    return next(found, OTHERS)


class Family:
    """A process and all its descendants, with figures by part."""

    def __init__(self, pid: int, *, part_of: Callable[[Sequence[str]], str] = part_of) -> None:
        self._root = psutil.Process(pid)
        self._part_of = part_of

    def cpu_s(self) -> Cpu:
        """Return the CPU time so far of the living processes."""
        times: dict[tuple[str, int], float] = {}
        for part, process in self._each():
            with suppress(*_GONE):
                times[part, process.pid] = sum(process.cpu_times()[:2])
        return times

    def pss_bytes(self) -> dict[str, int]:
        """Return the memory by part. Shared memory is divided among the processes that share it."""
        return self._sum(lambda each: _pss_bytes(each.pid))

    def files(self) -> dict[str, int]:
        return self._sum(lambda each: each.num_fds())

    def threads(self) -> dict[str, int]:
        return self._sum(lambda each: each.num_threads())

    def processes(self) -> dict[str, int]:
        return self._sum(lambda _: 1)

    def _sum(self, of: Callable[[psutil.Process], N]) -> dict[str, N]:
        sums: dict[str, N] = {}
        for part, process in self._each():
            with suppress(*_GONE):
                sums[part] = sums.get(part, 0) + of(process)
        return sums

    def _each(self) -> Iterator[tuple[str, psutil.Process]]:
        for process in (self._root, *self._root.children(recursive=True)):
            with suppress(*_GONE):
                yield self._part_of(process.cmdline()), process


def used(before: Cpu, after: Cpu) -> dict[str, float]:
    """Return the CPU time of each part between two `cpu_s`, without that of processes that ended
    between them.
    """
    sums: dict[str, float] = {}
    for (part, pid), cpu_s in after.items():
        sums[part] = sums.get(part, 0.0) + cpu_s - before.get((part, pid), 0.0)
    return sums


def _pss_bytes(pid: int) -> int:
    """Proportional set size: https://docs.kernel.org/filesystems/proc.html (smaps_rollup)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0
