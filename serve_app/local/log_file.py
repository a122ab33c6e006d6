"""The log of all processes of `darkroom up` in one file, moved aside before it grows large.

Each process writes to a file of its own in the folder of Ray's session, and goes with it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

NAME = "darkroom.log"

_PERIOD_S = 0.25
_LONGEST_PART = 0.02
"""Of the time: where there are very many files, they are looked at less often."""
_BLOCK_BYTES = 256 * 1024
_LONGEST_LINE_BYTES = 64 * 1024
_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""Begin lines by which Ray tells whose file it is."""

Show = Callable[[str], None]


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging has it
        """A disk without room stops nobody."""


class LogFile:
    """Copies each line that ends up in a file of `source` to `<folder>/darkroom.log`."""

    def __init__(
        self, source: Path, folder: Path, *, max_bytes: int, files: int, show: Show | None = None
    ) -> None:
        """`source`: need not be there yet; `show` is called with each line, too."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._source = source
        self._show = show
        self._file = _File(folder / NAME, maxBytes=max_bytes, backupCount=files, encoding="utf-8")
        self._file.setFormatter(logging.Formatter("%(message)s"))
        self._read_bytes: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="log-file", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Returns once all that was written before is copied."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):  # what a full disk did not take is lost
            self._file.close()

    def _follow(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            self.copy()
            pause_s = max(_PERIOD_S, (time.monotonic() - began) / _LONGEST_PART)
        self.copy(is_last=True)

    def copy(self, *, is_last: bool = False) -> None:
        """What is new. A line that has no end yet is left, unless it is the last time."""
        with suppress(OSError), os.scandir(self._source) as entries:
            for entry in entries:
                if entry.name.startswith("worker-") and entry.name.endswith(".err"):
                    with suppress(FileNotFoundError):
                        self._copy_file(entry, is_last=is_last)

    def _copy_file(self, entry: os.DirEntry[str], *, is_last: bool) -> None:
        at, size = self._read_bytes.get(entry.name, 0), entry.stat().st_size
        if size < at:
            at = 0  # Ray has moved it aside
        while at < size:
            with Path(entry).open("rb") as file:
                file.seek(at)
                block = file.read(_BLOCK_BYTES)
            whole = block.rfind(b"\n") + 1
            if not whole and not is_last and len(block) < _LONGEST_LINE_BYTES:
                break
            block = block[: whole or _LONGEST_LINE_BYTES]
            at += len(block)
            self._read_bytes[entry.name] = at
            for line in block.splitlines():
                if line and not line.startswith(_MARKS):
                    self._write(line.decode(errors="backslashreplace"))

    def _write(self, line: str) -> None:
        self._file.handle(logging.makeLogRecord({"msg": line}))
        if self._show is not None:
            # Whoever it is shown to has gone, or a terminal has no such characters.
            with suppress(OSError, ValueError):
                self._show(line)
