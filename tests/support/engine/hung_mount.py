"""A models folder on a network mount whose server is away."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest


class HungMount:
    """A folder whose listings do not return before `answer`."""

    def __init__(self) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self._scandir = os.scandir

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()

    def scandir(self, path: str = ".") -> object:
        self._answers.wait()
        return self._scandir(path)


@contextmanager
def hung_mount() -> Generator[HungMount]:
    """Route every listing of a folder through a mount that a test can hang."""
    with pytest.MonkeyPatch.context() as patch:
        mount = HungMount()
        patch.setattr("os.scandir", mount.scandir)
        yield mount
        mount.answer()
