"""A node of Ray in its own process, started as on a machine of the cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil

from local.ports import held_ports

_NODE = "CLUSTER_NODE"
_AGENT_PORTS = 4
_KILL_TIMEOUT_S = 30.0


class RayNode:
    """One `ray start`, which ends with all its processes."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, object],
        *,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        """`options`: options of `ray start` by their names without dashes."""
        self.name = name
        self._id = uuid4().hex
        self._options = dict(options)
        self._environment = {**environment, _NODE: self._id}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start without waiting; the node joins the cluster when it is ready."""
        with held_ports(_AGENT_PORTS) as ports:
            pass  # two nodes of one machine have different ports
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

    def restart(self) -> bool:
        """Start an ended node again if Ray has given up its start.

        Ray allows 30 s for the start, and a loaded machine may need more. Returns whether the node
        was started.
        """
        if "timed out during startup" not in self.output:
            return False
        self.kill()
        self.start()
        return True

    def kill(self) -> None:
        """Send SIGKILL to all processes of the node, as when its machine is lost."""
        kill_all_with(_NODE, self._id)
        if self._process is not None:
            self._process.wait(10)

    def has(self, pid: int) -> bool:
        """Whether this process belongs to the node."""
        return _has(psutil.Process(pid), _NODE, self._id)

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def kill_all_with(variable: str, value: str) -> None:
    """Send SIGKILL to each process with this variable in its environment, until none is left.

    A zombie counts as gone, because its parent may never wait for it.
    """
    give_up_at = time.monotonic() + _KILL_TIMEOUT_S
    while processes := [each for each in psutil.process_iter() if _has(each, variable, value)]:
        assert time.monotonic() < give_up_at, processes
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def _has(process: psutil.Process, variable: str, value: str) -> bool:
    with suppress(psutil.Error):
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return not is_zombie and process.environ().get(variable) == value
    return False


def _option(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    return f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"
