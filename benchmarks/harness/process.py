"""Runs a peer (a program to compare with) in its own process, with the environment of a worker's
engine.

The peer reads a kind of jobs and a number from each line of its input, runs this number of jobs,
and prints the time in seconds. A peer has its own process, because each thread that uses OpenMP
starts OpenMP threads of its own. Two such threads in one process slow each other down.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

from actors.scheduler.ray_cluster import ENGINE_ENVIRONMENT
from examples.service import ROOT


def run_as_engine(module: str) -> None:
    """Run a module again with the environment of a worker's engine, unless the process has this
    environment already.

    The allocator and OpenMP read their variables when a process starts.
    """
    if not ENGINE_ENVIRONMENT.items() <= os.environ.items():
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | ENGINE_ENVIRONMENT)


class Process:
    """The process of a module. `nice` is the niceness that is added, as with the command `nice`."""

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
        """Return the time in seconds that the peer needs for `jobs` jobs of a kind."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(kind, jobs, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())
