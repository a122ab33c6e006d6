"""Runs a peer in a process of its own, with the environment of a worker's engine.

The peer reads a kind of jobs and a number from each line of its input, runs so many of them, and
prints the seconds. It has a process of its own because OpenMP's threads belong to the thread that
starts them: two threads that take turns in one process slow each other down.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

from actors.dispatch.ray_cluster import ENGINE_ENVIRONMENT
from examples.service import ROOT


def run_as_engine(module: str) -> None:
    """Run this module from its start with the environment of a worker's engine, unless it is.

    The allocator and OpenMP read theirs when a process starts.
    """
    if not ENGINE_ENVIRONMENT.items() <= os.environ.items():
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | ENGINE_ENVIRONMENT)


class Process:
    """The process of a module; `nice` lowers its priority, as the command does."""

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

    def run(self, jobs: int = 1, *, kind: str = "alike") -> float:
        """The seconds that the peer needs for so many jobs of a kind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(kind, jobs, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())
