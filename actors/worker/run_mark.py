"""Run marks: each states whether the device works for a run. A mark survives the death of the
engine.

A mark is one byte of a file. The engine maps the file into its memory, and so sets the mark without
a system call. The engine and the job actor are on the same machine, because both are in one bundle
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
"""Prefix of the file names. The process id of the job actor follows."""


class RunMark:
    """The mark of a run, for its job actor, which makes the file and reads the mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def new(cls) -> Iterator[Self]:
        """Make a mark. It is unknown if the file cannot be made, for example on a full disk."""
        with ExitStack() as stack:
            path = Path(os.devnull)
            with suppress(OSError):
                path = stack.enter_context(_new_file())
            yield cls(path)

    @property
    def is_active(self) -> bool:
        """Whether the device works for the run, or did so when the engine died.

        This is True if the mark is unknown.
        """
        return self._read() != _WAITS

    @property
    def may_be_joined(self) -> bool:
        """Whether other runs may have joined an exclusive run."""
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
    """Remove the marks of job actors whose process has ended."""
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
        """Set the mark. `EngineHost` resets it after the validation of the graph, so a job whose
        validation ends the engine is a suspect, too.

        A missing file is not made, because its job actor is dead or on another machine.
        """
        self._byte: mmap.mmap | None = None
        self._active = _ACTIVE
        with suppress(OSError), path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)
        self.set_active(True)

    def set_active(self, is_active: bool) -> None:
        """Set or reset the mark. Any thread may call this. After `close`, nothing is changed."""
        byte = self._byte
        if byte is not None:
            with suppress(ValueError):  # The mark is closed.
                byte[:] = self._active if is_active else _WAITS

    def note_joined(self) -> None:
        """Note that other runs have joined an exclusive run, so its job must not be blamed."""
        byte, self._active = self._byte, _BESIDE_OTHERS
        if byte is not None:
            with suppress(ValueError):  # The mark is closed.
                if byte[:] == _ACTIVE:
                    byte[:] = self._active

    def close(self) -> None:
        if self._byte is not None:
            self._byte.close()
