"""How many jobs of each owner a dispatcher runs. It is told the others and never stored. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


class MalformedRunning(ValueError):
    """The bytes say nothing of running jobs."""


@dataclass(frozen=True, slots=True)
class RunningCounts:
    dispatcher: str
    by_owner: Mapping[str, int]
    is_whole: bool
    """Whether owners that are not named run nothing there; else only what has changed is told."""

    def encode(self) -> bytes:
        """As JSON, compressed: tens of thousands of owners fit into a message of NATS."""
        return zlib.compress(json.dumps(asdict(self)).encode())


def decode_running(data: bytes) -> RunningCounts:
    """Raises MalformedRunning."""
    try:
        said: dict[str, Any] = json.loads(zlib.decompress(data))
        by_owner = {str(owner): max(int(count), 0) for owner, count in said["by_owner"].items()}
        return RunningCounts(str(said["dispatcher"]), by_owner, bool(said["is_whole"]))
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MalformedRunning(str(error)) from error
