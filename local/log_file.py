"""LogFile: copies the log lines of all processes of `darkroom up` to one file, which is rotated.

Each process writes to its own file in the folder of Ray's session. Only the files of the last
session are kept.
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

from settings.constant import constant

NAME = "darkroom.log"

_PERIOD_S = 0.25
_MOST_TIME_SHARE = 0.02
"""The largest share of time that the thread spends on reading. It reads many files less often."""
_BLOCK_BYTES = 256 * 1024
_LONGEST_LINE_BYTES = 64 * 1024
_MAX_BYTES = constant("LOG_FILE_BYTES", 10 * 1024**2)
"""The size in bytes of `darkroom.log` above which the file is renamed and a new file is begun."""
_FILES = constant("LOG_FILES", 5)
"""The number of renamed files that are kept."""
_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""The prefixes of the lines in which Ray names the process of a file."""

Show = Callable[[str], None]


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in `logging`
        """Ignore the error, so that a full disk does not stop the service."""


class LogFile:
    """Copies each line of Ray's files `worker-*.err` in `source` to `<folder>/darkroom.log`."""

    def __init__(
        self,
        source: Path,
        folder: Path,
        *,
        max_bytes: int = _MAX_BYTES,
        files: int = _FILES,
        show: Show | None = None,
    ) -> None:
        """`source` need not exist yet. `show` is called with each line."""
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
        """Copy the lines that were written so far, and stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):  # Lines that do not fit on a full disk are lost.
            self._file.close()

    def _follow(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            began = time.monotonic()
            self.copy()
            pause_s = max(_PERIOD_S, (time.monotonic() - began) / _MOST_TIME_SHARE)
        self.copy(is_last=True)

    def copy(self, *, is_last: bool = False) -> None:
        """Copy the new lines, but an incomplete line only if it is long or `is_last` is True."""
        with suppress(OSError), os.scandir(self._source) as entries:
            for entry in entries:
                if entry.name.startswith("worker-") and entry.name.endswith(".err"):
                    with suppress(FileNotFoundError):
                        self._copy_file(entry, is_last=is_last)

    def _copy_file(self, entry: os.DirEntry[str], *, is_last: bool) -> None:
        at, size = self._read_bytes.get(entry.name, 0), entry.stat().st_size
        if size < at:
            at = 0  # Ray has rotated the file, so the new file is read from its start.
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
            # The output may be closed, or unable to show these characters.
            with suppress(OSError, ValueError):
                self._show(line)
