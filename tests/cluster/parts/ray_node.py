"""A node of Ray in a process of its own, as a machine of the cluster starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from serve_app.local.ports import held_ports

_AGENT_PORTS = 4


class RayNode:
    """One `ray start`, which ends with all that it started, at once or in good order."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, object],
        *,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        """`options`: of `ray start`, by their names without the dashes."""
        self.name = name
        self._options = dict(options)
        self._environment = dict(environment)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns at once: it joins the cluster when it is ready."""
        with held_ports(_AGENT_PORTS) as ports:
            pass  # two nodes of one machine share none
        options = self._options | {
            "dashboard-agent-listen-port": ports[0],
            "dashboard-agent-grpc-port": ports[1],
            "runtime-env-agent-port": ports[2],
            "metrics-export-port": ports[3],
            "min-worker-port": 0,
            "max-worker-port": 0,
            "object-store-memory": 100 * 1024**2,
        }
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [_option(name, value) for name, value in options.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--disable-usage-stats"],
                env=self._environment,
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

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def output(self) -> str:
        """Since its last start."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def _option(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    return f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"
