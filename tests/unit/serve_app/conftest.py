import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from tests.support.edge import Edge, running_edge
from tests.support.failing_log import FailingLog


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
def free_port() -> int:
    """Of this machine: nobody listens there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
