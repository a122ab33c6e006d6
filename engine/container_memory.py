"""The memory of the container that this process runs in, as its control group has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""The files of a limit and of what is used, of version 2 and of version 1."""


@dataclass(frozen=True, slots=True)
class ContainerMemory:
    limit_bytes: int
    """Version 1 has a huge number where there is no limit."""
    used_bytes: int


def container_memory(root: Path = _ROOT) -> ContainerMemory | None:
    """None where there is no control group, or it has no limit."""
    for limit, used in _FILES:
        try:
            return ContainerMemory(int((root / limit).read_text()), int((root / used).read_text()))
        except (OSError, ValueError):  # no such version, or "max"
            continue
    return None
