"""A module of this folder in a process of its own, with the environment of a worker's engine.

It reads a line with a number from its input, does its work that often, and answers the seconds.
Apart, because OpenMP's threads belong to the thread that makes them: two that work in turn in one
process slow each other down.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

from actors.dispatch.worker import ENGINE_ENVIRONMENT  # what is compared must run alike
from examples.service import ROOT


class Process:
    """The process, seen from the benchmark; as nice to other processes as it is told."""

    def __init__(self, module: str, *arguments: str, nice: int = 0) -> None:
        self._command = ["nice", "-n", str(nice), sys.executable, "-m", module, *arguments]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=os.environ | ENGINE_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def run(self, times: int = 1) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(times, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())
