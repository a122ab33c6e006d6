"""Location: where an actor runs, for tests and tools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import ray


@dataclass(frozen=True, slots=True)
class Location:
    pid: int
    placement_group: str | None
    resources: Mapping[str, float]


def location() -> Location:
    context = ray.get_runtime_context()
    return Location(os.getpid(), context.get_placement_group_id(), context.get_assigned_resources())
