"""Records the actions and observations of a run in a file, to investigate failures."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Record:
    """Adds lines of JSON to a file: the Unix time `at`, `what` happened, and its members."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def add(self, what: str, **members: Any) -> None:
        line = json.dumps({"at": time.time(), "what": what, **members}, ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as file:
        yield from map(json.loads, file)
