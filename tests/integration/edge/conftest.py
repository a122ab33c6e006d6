"""The HTTP API behind HAProxy, as `darkroom up` runs it, on parts that live in memory."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from ray.serve._private.haproxy import (
    BackendConfig,
    HAProxyApi,
    HAProxyConfig,
    ServerConfig,
)
from ray.serve.config import HTTPOptions

from local.haproxy import environment
from local.ports import held_ports
from settings.http import HttpSettings
from tests.support.constants import constants, take_constants
from tests.support.edge import running_edge

SHORT: dict[str, Any] = {
    "header_timeout_s": 2.0,
    "idle_timeout_s": 1.0,
    "silence_timeout_s": 1.5,
    "body_grace_s": 0.5,
    "unread_body_s": 0.5,
    "stream_keep_alive_s": 0.5,
    "max_streams": 20,
    "max_connections": 600,
    "max_connections_per_address": 100,
}
"""Short times and small numbers, so that each is reached within a test's patience."""

PATIENCE_S = 20.0
"""Far longer than any of these times, on a slow machine too; far shorter than without them."""


@dataclass(frozen=True)
class Front:
    """Where the API is reached."""

    port: int
    key: str

    def connect(self, source: str = "127.0.0.1", *, timeout_s: float = 30.0) -> socket.socket:
        address = ("127.0.0.1", self.port)
        return socket.create_connection(address, timeout_s, source_address=(source, 0))

    def ask(self, request: bytes, *, timeout_s: float = 30.0, source: str = "127.0.0.1") -> bytes:
        """All that is answered until the connection is closed; what was not closed fails."""
        with self.connect(source, timeout_s=timeout_s) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # its answer is read all the same
                connection.sendall(request)
            return received(connection)

    def live_s(self, source: str = "127.0.0.1") -> float:
        """How long `GET /health/live` takes."""
        begun = time.monotonic()
        answer = self.ask(get("/health/live"), source=source)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return time.monotonic() - begun


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: darkroom", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def received(connection: socket.socket) -> bytes:
    answer = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


@pytest.fixture(scope="session")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with _running_front(tmp_path_factory.mktemp("front"), SHORT) as front:
        yield front


@pytest.fixture(scope="session")
def patient_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Waits for callers for longer than a test takes, however slow the machine is."""
    limits = SHORT | {"header_timeout_s": 60.0, "silence_timeout_s": 60.0}
    with _running_front(tmp_path_factory.mktemp("patient"), limits) as front:
        yield front


@pytest.fixture
def narrow_front(tmp_path: Path) -> Iterator[Front]:
    """Sends its replica few requests at the same time."""
    with _running_front(
        tmp_path, SHORT | {"max_replica_requests": 3, "queue_timeout_s": 0.5}
    ) as front:
        yield front


@contextmanager
def _running_front(folder: Path, limits: dict[str, Any]) -> Iterator[Front]:
    with _replica(folder, limits) as (port, key), _haproxy(folder, port, limits) as front_port:
        front = Front(front_port, key)
        give_up_at = time.monotonic() + 60
        while not front.ask(get("/health/live")).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        yield front


@contextmanager
def _replica(folder: Path, limits: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Runs one replica in a thread; gives its port, and a key."""
    ready, stop = threading.Event(), threading.Event()
    found: list[tuple[int, str]] = []

    async def run() -> None:
        async with running_edge(folder, **limits) as edge:
            key = await edge.key()
            async with listening(edge.app) as (port, _):
                found.append((port, key))
                ready.set()
                await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="replica")
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        stop.set()
        thread.join(60)


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[tuple[int, uvicorn.Server]]:
    """Serve the application; gives the port."""

    async def with_health_check(scope: Any, receive: Any, send: Any) -> None:
        """Serve's replica answers HAProxy's checks itself."""
        path = "/health/live" if scope["path"] == "/-/healthz" else scope["path"]
        await app({**scope, "path": path}, receive, send)

    config = uvicorn.Config(with_health_check, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield int(listener.getsockname()[1]), server
        finally:
            server.should_exit = server.force_exit = True
            await serving


@contextmanager
def _haproxy(folder: Path, replica_port: int, limits: dict[str, Any]) -> Iterator[int]:
    """Runs HAProxy with Serve's own configuration and our limits; gives its port."""
    with held_ports(3) as ports:
        yield from _haproxy_on(ports, folder, replica_port, limits)


def _haproxy_on(
    ports: range, folder: Path, replica_port: int, limits: dict[str, Any]
) -> Iterator[int]:
    path = folder / "haproxy.cfg"
    api = HAProxyApi(
        HAProxyConfig(
            http_options=HTTPOptions(host="127.0.0.1", port=ports[0]),
            metrics_port=ports[1],
            stats_port=ports[2],
            socket_path=str(folder / "a.sock"),
            metrics_enabled=False,
            enable_hap_optimization=False,
        ),
        config_file_path=str(path),
    )
    server = ServerConfig("replica", "127.0.0.1", replica_port)
    api.set_backend_configs({"app": BackendConfig("app", "/", servers=[server], app_name="app")})
    api._generate_config_file_internal()
    given = dict(limits)
    changed = take_constants(given)
    settings = HttpSettings(port=ports[0], **given)
    with constants(**changed):
        launcher = environment(settings, folder)["RAY_SERVE_HAPROXY_BINARY_PATH"]
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [launcher, "-db", "-f", str(path)],
            stdout=log,
            stderr=log,
            env=os.environ
            | {f"DARKROOM_TEST_{name.upper()}": str(changed[name]) for name in changed},
        )
    try:
        give_up_at = time.monotonic() + 60
        while not _listens(ports[0]):
            assert process.poll() is None, (folder / "haproxy.log").read_text()
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        yield ports[0]
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return False
    return True
