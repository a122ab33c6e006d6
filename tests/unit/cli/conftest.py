"""The API of an edge, on a port for the command line; and commands that call it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import uvicorn
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from cli.terminal import console
from tests.support.edge import Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

Run = Callable[..., Awaitable[Result]]
"""A key, and the words of a command."""


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
async def edge(tmp_path: Path, log: FailingLog) -> AsyncGenerator[Edge]:
    async with running_edge(tmp_path, log=log) as edge:
        yield edge


@pytest.fixture
async def client(edge: Edge) -> AsyncGenerator[httpx.AsyncClient]:
    """Alice, who may do everything but administer."""
    async with await edge.client("alice") as client:
        yield client


@pytest.fixture
async def url(edge: Edge) -> AsyncGenerator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(edge.app, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await eventually(lambda: server.started)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest.fixture
def run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """With a wide terminal, and nothing of this machine."""
    monkeypatch.setattr(console, "width", 240)

    async def run_one(key: str, *words: str) -> Result:
        environment = {
            "DARKROOM_URL": url,
            "DARKROOM_API_KEY": key,
            "DARKROOM_DATA_DIR": str(tmp_path),
        }
        return await asyncio.to_thread(CliRunner(env=environment).invoke, app, list(words))

    return run_one
