"""The memory that a device has and a call takes: the GPU's allocator, or the machine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from engine.batch_limits import Gauge

_PROC = Path("/proc/self")
_CGROUP = Path("/sys/fs/cgroup")
_RESET_PEAK = "5"


def gauge_of(device: torch.device) -> Gauge | None:
    """None where nothing can be measured: then only running out of memory sets a limit."""
    if device.type == "cuda":
        return CudaGauge(device)
    return HostGauge() if HostGauge.works() else None


class CudaGauge:
    """A GPU, through torch's caching allocator."""

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

    def grown_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) - self._start


class HostGauge:
    """The machine's memory, from Linux' /proc. The heap keeps what calls gave back to it."""

    def __init__(self) -> None:
        self._start = 0
        self._kept = 0

    @staticmethod
    def works() -> bool:
        try:
            (_PROC / "clear_refs").write_text(_RESET_PEAK)
            return _of_process("VmHWM") > 0
        except (OSError, KeyError):
            return False

    def available_bytes(self) -> int:
        free = _fields(Path("/proc/meminfo"))["MemAvailable"]
        return min([free, *_group_free()]) + self._kept

    def start(self) -> None:
        (_PROC / "clear_refs").write_text(_RESET_PEAK)
        self._start = _of_process("VmRSS")

    def grown_bytes(self) -> int:
        grown = max(0, _of_process("VmHWM") - self._start)
        self._kept = max(self._kept, grown)
        return grown


def _of_process(name: str) -> int:
    return _fields(_PROC / "status")[name]


def _fields(path: Path) -> dict[str, int]:
    """The lines in kB of a file in /proc, in bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


def _group_free() -> Iterator[int]:
    """What the container may still take, where it has a limit (cgroup v2)."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            yield max(0, int(limit) - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        return
