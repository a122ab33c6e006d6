"""Probes that measure a device's memory: the available bytes, and the peak of a call."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.batch_limits import MemoryProbe
from engine.container_memory import container_memory

_PROC = Path("/proc/self")
_RESET_PEAK = "5"
"""Writing this text to `clear_refs` sets the peak (VmHWM) to the memory in use."""


def memory_probe_of(device: torch.device) -> MemoryProbe | None:
    """Return the probe for a device, or None if nothing can be measured."""
    if device.type == "cuda":
        return CudaMemoryProbe(device)
    return HostMemoryProbe() if HostMemoryProbe.works() else None


class CudaMemoryProbe:
    """Measures a GPU through torch's caching allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = 0

    def available_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        return int(free) + reserved - torch.cuda.memory_allocated(self._device)

    def start(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._start = torch.cuda.memory_allocated(self._device)

    def peak_growth_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) - self._start


class HostMemoryProbe:
    """Measures the machine's memory through /proc of Linux.

    Memory that a call has freed stays in the heap of this process and counts as available.
    """

    def __init__(self) -> None:
        self._start = 0
        self._heap_bytes = 0

    @staticmethod
    def works() -> bool:
        """Return whether a process can measure its own peak on this system."""
        try:
            (_PROC / "clear_refs").write_text(_RESET_PEAK)
            return _status_bytes("VmHWM") > 0
        except (OSError, KeyError):
            return False

    def available_bytes(self) -> int:
        free = _fields(Path("/proc/meminfo"))["MemAvailable"]
        return min([free, *_cgroup_free(), *_process_free()]) + self._heap_bytes

    def start(self) -> None:
        (_PROC / "clear_refs").write_text(_RESET_PEAK)
        self._start = _status_bytes("VmRSS")

    def peak_growth_bytes(self) -> int:
        grown = max(0, _status_bytes("VmHWM") - self._start)
        self._heap_bytes = max(self._heap_bytes, grown)
        return grown


def _status_bytes(name: str) -> int:
    return _fields(_PROC / "status")[name]


def _fields(path: Path) -> dict[str, int]:
    """Return the fields in kB of a file in /proc, converted to bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


def _process_free() -> Iterator[int]:
    """Yield the memory that this process may still allocate, if the process has a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        yield max(0, limit - _status_bytes("VmData"))


def _cgroup_free() -> Iterator[int]:
    """Yield the memory that the container may still allocate, if the container has a limit."""
    container = container_memory()
    if container is not None:
        yield max(0, container.limit_bytes - container.used_bytes)
