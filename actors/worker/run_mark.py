"""A run's mark: whether the device works for it, to be read after the engine's process has died.

It is one byte of a file that both processes map, so to set it costs no system call. The engine of a
job runs on the same machine as its job actor: both are in one bundle of a placement group.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

_ACTIVE, _WAITS = b"1", b"0"


class RunMark:
    """The mark as the job actor has it. It is set until the engine says otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def new(cls) -> Iterator[Self]:
        with tempfile.NamedTemporaryFile(prefix="darkroom-run-") as file:
            file.write(_ACTIVE)
            file.flush()
            yield cls(Path(file.name))

    @property
    def is_active(self) -> bool:
        """Whether the device works for the run, or did when the engine died."""
        return self.path.read_bytes() == _ACTIVE


class RunMarkWriter:
    """The mark as the engine has it."""

    def __init__(self, path: Path) -> None:
        """A file that is not there is left alone: its job actor is on another machine, or dead."""
        self._byte: mmap.mmap | None = None
        with suppress(OSError), path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    def set_active(self, is_active: bool) -> None:
        """Any thread may call this. After `close` it changes nothing."""
        byte = self._byte
        if byte is not None:
            with suppress(ValueError):  # closed
                byte[:] = _ACTIVE if is_active else _WAITS

    def close(self) -> None:
        if self._byte is not None:
            self._byte.close()
