"""The service on a Ray cluster as `deploy/base/ray-service.yaml` has it, on this machine.

A head that carries nothing, edge nodes for HTTP and roles, and what they need outside. The edge
nodes share an address, so their HAProxies share a port: the kernel gives each connection to one
that lives, as a Service of Kubernetes does. The head's has another one.
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
"""What the names of its actors have in them."""
_EDGE: dict[str, object] = {"resources": CPU_NODE, "labels": "app.kubernetes.io/component=edge"}
"""Options of a node for HTTP and roles."""


class LocalCluster:
    """Nothing of it is started. Everything has the mark of `processes`, and is ended with it."""

    def __init__(
        self, folder: Path, processes: Processes, nats: NatsServers, outside: Mapping[str, str]
    ) -> None:
        """`outside`: the settings that say where log, database and images are, and the secret."""
        self.folder = folder
        self.processes = processes
        self.nats = nats
        self.outside = outside
        self.redis: RedisServer | None = None
        self._state: RayState | None = None
        """As the present head knows it."""
        self._numbers = itertools.count()
        self.nodes: dict[str, RayNode] = {}
        """By name."""
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
            # Two cores are too few for processes that only stand by.
            "DARKROOM_STANDBY_ENGINE": "false",
            "DARKROOM_SPARE_JOB_ACTORS": "1",
            "DARKROOM_JOBS_PER_WORKER": "2",
            **outside,
        }
        """Of the application; what is changed before a node starts counts there."""
        self.environment = node_environment(folder) | {MARK: processes.mark}

    # Nodes.

    def start_head(self) -> None:
        """One that carries nothing, and remembers all if there is a Redis."""
        options, environment = self._head_options(), dict(self.environment)
        if self.redis is not None:
            environment["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{self.redis.port}"
            options["redis-password"] = self.redis.password
        self._start("head", options, environment)

    def start_whole_head(self, *, cpus: int) -> None:
        """One that carries HTTP and roles, and a worker on each of its CPUs."""
        self._head_port = self._port
        options = self._head_options() | {"num-cpus": cpus, **_EDGE}
        self._start("head", options, {**self.environment, **self.settings})

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
        """A node for HTTP and roles, and for a worker on each of its CPUs."""
        options = {"address": self.gcs, "num-cpus": cpus, "num-gpus": 0, **_EDGE}
        port = {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(self._port)}
        self._start(name, options, {**self.environment, **self.settings, **port})

    def _start(
        self, name: str, options: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        log = self.folder / f"{name}.log"
        # A folder of its own, as on a machine of its own: two nodes that start at once choose the
        # same names of sockets, and a head finds in its folder that it runs already.
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
        """Returns once it can be asked. Nodes may join before."""
        node = self.nodes["head"]
        await eventually(lambda: "runtime started" in node.output or not node.is_running)
        assert node.is_running, node.output

    def drain(self, node_id: str) -> None:
        """As a cloud does that is about to take a machine away."""
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
        self._output(
            [program("ray"), "drain-node", "--address", self.gcs, "--node-id", node_id, *reason]
        )

    async def start(self) -> None:
        """Three nodes, a head and two edge nodes with room for a worker each, and the service."""
        self.start_head()
        await self.head_is_up()
        for name in ("edge-1", "edge-2"):
            self.start_edge(name, cpus=1)
        await self.joined(3)
        await self.deploy()
        await self.is_whole()
        await eventually(self.is_ready)

    async def is_whole(self) -> None:
        """Returns once each role is there once, and both replicas are."""
        await eventually(lambda: all(len(self.ray().pids(role)) == 1 for role in ROLES))
        await eventually(lambda: len(self.ray().pids(REPLICA)) == 2)

    async def joined(self, count: int) -> None:
        """Returns once so many nodes are there."""
        await eventually(lambda: self.ray().nodes() == count)

    def node_of(self, part: str) -> RayNode:
        """The one with the actor that has `part` in its name."""
        (pid,) = self.ray().pids(part)
        return next(node for node in self.nodes.values() if node.has(pid))

    def workers(self) -> set[str]:
        return {name for name in self.ray().placement_groups() if name.startswith("worker:")}

    # The application.

    async def deploy(self, **arguments: str) -> None:
        """As a RayService does, again until it is taken. `arguments` of the application change
        what it is made from.
        """
        config = serve_config(self._head_port)
        config["applications"][0]["args"] = arguments
        path = self.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [program("serve"), "deploy", "--address", self.dashboard, str(path)]

        async def is_taken() -> bool:
            return (await asyncio.to_thread(self._run, command)).returncode == 0

        await eventually(is_taken)

    def serve(self, *arguments: str) -> str:
        """What `serve` prints, called with these arguments."""
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
        """Returns once the application and all its workers are gone."""
        await eventually(lambda: not self.ray().placement_groups())
        await eventually(lambda: not self.ray().actors())


@asynccontextmanager
async def local_cluster(
    *, log_servers: int = 1, database_url: str | None = None
) -> AsyncGenerator[LocalCluster]:
    """With its event log, and a database in a file unless one is given; no node yet. All of it is
    gone at the end.
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
    """Another one with the same event log, database and images; no node yet."""
    processes = Processes()
    async with AsyncExitStack() as stack:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(processes.end)
        cluster = LocalCluster(folder, processes, old.nats, old.outside)
        stack.callback(cluster.stop)
        yield cluster
