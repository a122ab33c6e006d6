"""A run's mark: whether the device works for it, to be read after the engine's process has died.

It is one byte of a file that both processes map, so to set it costs no system call. The engine of a
job runs on the same machine as its job actor: both are in one bundle of a placement group.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

_ACTIVE, _BESIDE_OTHERS, _WAITS = b"1", b"2", b"0"
_PREFIX = "darkroom-run-"
"""Of the names of the files. The id of the process that made it follows."""


class RunMark:
    """The mark as the job actor has it. An engine sets it when it takes the run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def new(cls) -> Iterator[Self]:
        """Where no file can be made, the disk being full, this is a mark that cannot be read."""
        with ExitStack() as stack:
            path = Path(os.devnull)
            with suppress(OSError):
                path = stack.enter_context(_new_file())
            yield cls(path)

    @property
    def is_active(self) -> bool:
        """Whether the device works for the run, or did when the engine died, or nobody knows."""
        return self._read() != _WAITS

    @property
    def may_be_joined(self) -> bool:
        """Whether others are beside a run that was to be exclusive, or nobody knows."""
        return self._read() != _ACTIVE

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError:
            return b""


@contextmanager
def _new_file() -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_WAITS)
        yield Path(name)
    finally:
        with suppress(OSError):
            Path(name).unlink()


def remove_stale_marks() -> None:
    """Those of job actors that were killed before they could."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid, _, _ = path.name.removeprefix(_PREFIX).partition("-")
        with suppress(OSError, ValueError):
            if not _is_alive(int(pid)):
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class RunMarkWriter:
    """The mark as the engine has it."""

    def __init__(self, path: Path) -> None:
        """Sets the mark: what the engine does before the device thread has the run is its, too.

        A file that is not there is left alone: its job actor is on another machine, or dead.
        """
        self._byte: mmap.mmap | None = None
        self._active = _ACTIVE
        with suppress(OSError), path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)
        self.set_active(True)

    def set_active(self, is_active: bool) -> None:
        """Any thread may call this. After `close` it changes nothing."""
        byte = self._byte
        if byte is not None:
            with suppress(ValueError):  # closed
                byte[:] = self._active if is_active else _WAITS

    def note_joined(self) -> None:
        """Others are beside the run from now on."""
        byte, self._active = self._byte, _BESIDE_OTHERS
        if byte is not None:
            with suppress(ValueError):  # closed
                if byte[:] == _ACTIVE:
                    byte[:] = self._active

    def close(self) -> None:
        if self._byte is not None:
            self._byte.close()
