"""One nats-server, or a cluster of three, each of which may be killed, stopped and started."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from examples.service import free_port
from local.nats_server import nats_server_binary

PASSWORD = secrets.token_urlsafe(12)
_CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
max_payload: 2MB
authorization {{ user: service, password: {password} }}
jetstream {{ store_dir: "{store}", sync_interval: always }}
"""
_CLUSTER = """\
cluster {{
  name: faults
  listen: "127.0.0.1:{port}"
  routes: [{routes}]
  no_advertise: true
}}
"""


@dataclass(slots=True)
class NatsNode:
    """One server with its folder. It has the same ports after each start."""

    name: str
    folder: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    cluster_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self, routes: list[int]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = _CONFIG.format(
            name=self.name, port=self.port, password=PASSWORD, store=self.folder / "store"
        )
        if len(routes) > 1:
            urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
            config += _CLUSTER.format(port=self.cluster_port, routes=urls)
        path = self.folder / "nats-server.conf"
        path.write_text(config)
        with (self.folder / "nats-server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [nats_server_binary(), "-c", str(path)],
                env=dict(self.environment),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    @property
    def url(self) -> str:
        return f"nats://service:{PASSWORD}@127.0.0.1:{self.port}"


class NatsServers:
    """`count` servers below `folder`: one, or three that keep three copies of each stream."""

    def __init__(self, folder: Path, *, count: int, environment: Mapping[str, str]) -> None:
        self.nodes = [
            NatsNode(f"nats-{number}", folder / f"nats-{number}", environment)
            for number in range(count)
        ]

    def start(self) -> None:
        for node in self.nodes:
            self.start_one(node)

    def start_one(self, node: NatsNode) -> None:
        node.start([each.cluster_port for each in self.nodes])

    def stop(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.kill()

    def ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    async def wait_ready(self, *, within_s: float = 120.0) -> None:
        """Wait until JetStream answers. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(NatsError, OSError, TimeoutError):
                    async with self.client() as client:
                        await client.jetstream(timeout=2).account_info()
                        return
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """Connect a client without the cable. Raises NatsError, OSError."""
        client = await nats.connect(
            [node.url for node in self.nodes],
            connect_timeout=2,
            max_reconnect_attempts=3,
            error_cb=_ignore,
        )
        try:
            yield client
        finally:
            await client.close()

    async def leader(self, stream: str) -> NatsNode:
        """Return the leader of a stream, or the only server."""
        if len(self.nodes) > 1:
            with suppress(NatsError, OSError, TimeoutError):
                async with self.client() as client:
                    info = await client.jetstream(timeout=2).stream_info(stream)
                    name = info.cluster.leader if info.cluster else None
                    for node in self.nodes:
                        if node.name == name:
                            return node
        return self.nodes[0]


async def _ignore(_error: Exception) -> None:
    """Ignore errors, because the servers are killed on purpose."""
