"""The memory of the container in which this process runs, read from its control group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""The files with the limit and with the used memory, for versions 2 and 1 of control groups."""


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    limit_bytes: int
    """A huge number if the control group has version 1 and no limit."""
    used_bytes: int


def container_memory(root: Path = _ROOT) -> ContainerMemory | None:
    """Return the memory of the container, or None if no limit can be read."""
    for limit, used in _FILES:
        try:
            return ContainerMemory(int((root / limit).read_text()), int((root / used).read_text()))
        # An error means that the system has another version of cgroups, or that the limit is "max".
        except (OSError, ValueError):
            continue
    return None
