"""A second Ray node on this machine, which may be killed whole and made anew."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

CPUS = 64
"""More than the first node has: a worker that asks for `WORKER_CPUS` runs here or nowhere."""
WORKER_CPUS = 48.0


class FarNode:
    def __init__(self, address: str, *, environment: Mapping[str, str], log: Path) -> None:
        """`address`: of the first node's GCS."""
        self._address = address
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once: the node joins when it is ready."""
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(f"--address={self._address}", f"--num-cpus={CPUS}", "--disable-usage-stats"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=dict(self._environment),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> int:
        """SIGKILL to the raylet and all that it started; returns how many these were."""
        if self._process is None or self._process.poll() is not None:
            return 0
        node = psutil.Process(self._process.pid)
        processes = [node, *node.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(10)
        return len(processes)
