"""Run marks: each states whether the device works for a run. A mark outlives the engine process.

A mark is one byte of a file. The engine maps the file into its memory, so it sets the mark without
a system call. The engine and the job actor run on the same machine, because both are in one bundle
of a placement group.
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
"""Prefix of the file names. The id of the process that made the file follows."""


class RunMark:
    """The mark of a run, for its job actor. The job actor makes the file and reads the mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def new(cls) -> Iterator[Self]:
        """Make a mark. If the file cannot be made, for example on a full disk, the mark is
        unknown.
        """
        with ExitStack() as stack:
            path = Path(os.devnull)
            with suppress(OSError):
                path = stack.enter_context(_new_file())
            yield cls(path)

    @property
    def is_active(self) -> bool:
        """Whether the device works for the run, or did so when the engine died.

        True if the mark is unknown.
        """
        return self._read() != _WAITS

    @property
    def may_be_joined(self) -> bool:
        """Whether other runs have joined an exclusive run. True if the mark is unknown."""
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
    """Remove the files of job actors whose process has ended."""
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
    """The mark of a run, for the engine."""

    def __init__(self, path: Path) -> None:
        """Set the mark. `EngineHost` resets the mark after the validation of the graph.

        So a job whose validation ends the engine is also a suspect. A missing file is not made
        again: its job actor is dead or on another machine.
        """
        self._byte: mmap.mmap | None = None
        self._active = _ACTIVE
        with suppress(OSError), path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)
        self.set_active(True)

    def set_active(self, is_active: bool) -> None:
        """Any thread may call this. After `close`, a call changes nothing."""
        byte = self._byte
        if byte is not None:
            with suppress(ValueError):  # `close` was called meanwhile.
                byte[:] = self._active if is_active else _WAITS

    def note_joined(self) -> None:
        """Note that other runs have joined the run. The run is then not blamed for an end of the
        engine.
        """
        byte, self._active = self._byte, _BESIDE_OTHERS
        if byte is not None:
            with suppress(ValueError):  # `close` was called meanwhile.
                if byte[:] == _ACTIVE:
                    byte[:] = self._active

    def close(self) -> None:
        if self._byte is not None:
            self._byte.close()
