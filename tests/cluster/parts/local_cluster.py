"""The service on a Ray cluster like that of `deploy/base/ray-service.yaml`, on this machine.

There is a head without parts of Darkroom, edge nodes for HTTP and roles, and the servers that they
need. The edge nodes share an address, so their HAProxies share a port: the kernel gives each
connection to a living one, as a Service of Kubernetes does. The head's HAProxy has another port.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples.service import DARKROOM, ROOT, free_port
from tests.cluster.parts.configuration import (
    CPU_NODE,
    node_environment,
    program,
    serve_config,
)
from tests.cluster.parts.ray_node import RayNode
from tests.cluster.parts.redis_server import RedisServer
from tests.faults.parts.machine import short_folder
from tests.faults.parts.nats_servers import NatsServers
from tests.faults.parts.processes import MARK, Processes, RayState
from tests.faults.schedule import ROLES
from tests.support.patience import FACTOR
from tests.support.polling import eventually
from tests.support.service import TEST_SETTINGS

REPLICA = "#Api#"
"""A part of the names of its actors."""
_EDGE: dict[str, object] = {"resources": CPU_NODE, "labels": "app.kubernetes.io/component=edge"}
"""Options of a node for HTTP and roles."""


class LocalCluster:
    """A cluster that starts without nodes. All its processes have the mark of `processes` and end
    with it.
    """

    def __init__(
        self, folder: Path, processes: Processes, nats: NatsServers, outside: Mapping[str, str]
    ) -> None:
        """`outside`: settings with the secret and the addresses of log, database and images."""
        self.folder = folder
        self.processes = processes
        self.nats = nats
        self.outside = outside
        self.redis: RedisServer | None = None
        self._state: RayState | None = None
        """The state of the present head."""
        self._numbers = itertools.count()
        self.nodes: dict[str, RayNode] = {}
        """The nodes by name."""
        self._port, self._head_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.gcs = f"127.0.0.1:{free_port()}"
        self.dashboard = f"http://127.0.0.1:{free_port()}"
        self.settings = TEST_SETTINGS | {
            "DARKROOM_MODELS_DIR": str(ROOT / "models"),
            "DARKROOM_DATA_DIR": str(folder / "d"),
            "DARKROOM_PUBLIC_URL": self.url,
            "DARKROOM_HTTP_REPLICAS": "2",
            "DARKROOM_WORKER_GPUS": "0",
            "DARKROOM_MAX_COST": "2000",
            # Two cores are too few for standby processes.
            "DARKROOM_TEST_STANDBY_ENGINE": "false",
            "DARKROOM_TEST_SPARE_JOB_ACTORS": "1",
            "DARKROOM_JOBS_PER_WORKER": "2",
            **outside,
        }
        """The application's settings; changes count for nodes that are started later."""
        self.environment = node_environment(folder) | {MARK: processes.mark}

    # Nodes.

    def start_head(self) -> None:
        """Start a head without parts of Darkroom, which restores its state if there is a Redis."""
        options, environment = self._head_options(), dict(self.environment)
        if self.redis is not None:
            environment["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{self.redis.port}"
            options["redis-password"] = self.redis.password
        self._start("head", options, environment)

    def start_whole_head(self, *, cpus: int) -> None:
        """Start a head with HTTP, roles, and a worker on each of its CPUs."""
        self._head_port = self._port
        options = self._head_options() | {"num-cpus": cpus, **_EDGE}
        self._start("head", options, {**self.environment, **self.settings})

    def start_autoscaling_head(
        self, config: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        """Start a head with HTTP and roles, whose autoscaler adds nodes by `config`."""
        path = self.folder / "autoscaling.yaml"
        path.write_text(yaml.safe_dump(dict(config)))
        self._head_port = self._port
        options = self._head_options() | {"autoscaling-config": path, **_EDGE}
        self._start("head", options, {**self.environment, **self.settings, **environment})

    def _head_options(self) -> dict[str, object]:
        self._state = None
        host, _, port = self.gcs.partition(":")
        return {
            "head": True,
            "port": port,
            "num-cpus": 0,
            "num-gpus": 0,
            "dashboard-host": host,
            "dashboard-port": self.dashboard.rpartition(":")[2],
            "ray-client-server-port": free_port(),
        }

    def start_edge(self, name: str, *, cpus: int) -> None:
        """Start a node for HTTP, roles, and a worker on each of its CPUs."""
        options = {"address": self.gcs, "num-cpus": cpus, "num-gpus": 0, **_EDGE}
        port = {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self._port)}
        self._start(name, options, {**self.environment, **self.settings, **port})

    def _start(
        self, name: str, options: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        log = self.folder / f"{name}.log"
        # Each node has its own folder, as on its own machine. Otherwise two nodes that start
        # together choose the same names of sockets, and a head finds another one running in its
        # folder.
        temporary = self.folder / f"n{next(self._numbers)}"
        options = {"node-ip-address": "127.0.0.1", "temp-dir": temporary, **options}
        node = RayNode(name, options, environment=environment, log=log)
        self.nodes[name] = node
        node.start()

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
        if self.redis is not None:
            self.redis.stop()

    def ray(self) -> RayState:
        if self._state is None:
            self._state = RayState(self.gcs)
        return self._state

    async def head_is_up(self) -> None:
        """Wait until the head answers; nodes may join before."""
        node = self.nodes["head"]
        await eventually(
            lambda: "runtime started" in node.output or not (node.is_running or node.restart())
        )
        assert node.is_running, node.output

    def drain(self, node_id: str) -> None:
        """Drain a node, as a cloud does before it removes a machine."""
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
        self._output(
            [program("ray"), "drain-node", "--address", self.gcs, "--node-id", node_id, *reason]
        )

    async def start(self) -> None:
        """Start three nodes, a head and two edge nodes with room for a worker each, and the
        service.
        """
        self.start_head()
        await self.head_is_up()
        for name in ("edge-1", "edge-2"):
            self.start_edge(name, cpus=1)
        await self.joined(3)
        await self.deploy()
        await self.is_whole()
        await eventually(self.is_ready)

    async def is_whole(self) -> None:
        """Wait until each role has one actor and both replicas run."""
        await eventually(lambda: all(len(self.ray().pids(role)) == 1 for role in ROLES))
        await eventually(lambda: len(self.ray().pids(REPLICA)) == 2)

    def ray_status(self) -> str:
        """Return the status of Ray's autoscaler: nodes, and pending demands."""
        return self._output([program("ray"), "status", "--address", self.gcs])

    async def joined(self, count: int) -> None:
        """Wait until this many nodes have joined."""
        await eventually(lambda: self.ray().nodes() == count or self._restart_late_nodes())

    def _restart_late_nodes(self) -> None:
        for node in self.nodes.values():
            if not node.is_running:
                node.restart()

    def node_of(self, part: str) -> RayNode:
        """Return the node with the actor that has `part` in its name."""
        (pid,) = self.ray().pids(part)
        return next(node for node in self.nodes.values() if node.has(pid))

    def workers(self) -> set[str]:
        return {name for name in self.ray().placement_groups() if name.startswith("worker:")}

    # The application.

    async def deploy(self, **arguments: str) -> None:
        """Deploy as a RayService does, and retry until it is accepted.

        `arguments` of the application change its code version.
        """
        config = serve_config(self._head_port)
        config["applications"][0]["args"] = arguments
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [program("serve"), "deploy", "--address", self.dashboard, str(path)]

        async def is_accepted() -> bool:
            return (await asyncio.to_thread(self._run, command)).returncode == 0

        await eventually(is_accepted)

    def serve(self, *arguments: str) -> str:
        """Run `serve` with these arguments and return its output."""
        return self._output([program("serve"), *arguments])

    def darkroom(self, *arguments: str) -> str:
        return self._output([DARKROOM, *arguments])

    def _output(self, command: list[str]) -> str:
        done = self._run(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **self.settings},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120 * FACTOR,
        )

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False

    async def is_empty(self) -> None:
        """Wait until the application and all its workers are gone."""
        await eventually(lambda: not self.ray().placement_groups())
        await eventually(lambda: not self.ray().actors())


@asynccontextmanager
async def local_cluster(
    *, log_servers: int = 1, database_url: str | None = None
) -> AsyncGenerator[LocalCluster]:
    """Run a cluster without nodes, with its event log, and a database in a file unless one is
    given.

    Everything is removed at the end.
    """
    processes = Processes()
    async with AsyncExitStack() as stack:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.end)
        environment = {**os.environ, MARK: processes.mark}
        nats = NatsServers(folder / "nats", count=log_servers, environment=environment)
        stack.callback(nats.stop)
        nats.start()
        await nats.wait_ready()
        settings = {
            "DARKROOM_NATS_URL": ",".join(node.url for node in nats.nodes),
            "DARKROOM_LOG_REPLICAS": str(log_servers),
            "DARKROOM_DATABASE_URL": database_url
            or f"sqlite+aiosqlite:///{folder / 'darkroom.sqlite3'}",
            "DARKROOM_IMAGES_URL": (folder / "images").as_uri(),
            "DARKROOM_SECRET": secrets.token_hex(32),
        }
        cluster = LocalCluster(folder, processes, nats, settings)
        stack.callback(cluster.stop)
        yield cluster


@asynccontextmanager
async def cluster_beside(old: LocalCluster) -> AsyncGenerator[LocalCluster]:
    """Run another cluster without nodes on the same event log, database and images."""
    processes = Processes()
    async with AsyncExitStack() as stack:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.end)
        cluster = LocalCluster(folder, processes, old.nats, old.outside)
        stack.callback(cluster.stop)
        yield cluster
