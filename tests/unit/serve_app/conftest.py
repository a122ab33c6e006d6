import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from events.store.records import Scope
from tests.support.edge import Client, Edge, running_edge
from tests.support.failing_log import FailingLog


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "edge(**settings): the settings of the fixture edge")


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
async def edge(
    tmp_path: Path, log: FailingLog, request: pytest.FixtureRequest
) -> AsyncGenerator[Edge]:
    """The HTTP API, with the settings and constants of the mark `edge`."""
    mark = request.node.get_closest_marker("edge")
    async with running_edge(tmp_path, log=log, **(mark.kwargs if mark else {})) as edge:
        yield edge


@pytest.fixture
async def client(edge: Edge) -> AsyncGenerator[Client]:
    """Alice, who may do everything but administer."""
    async with await edge.client("alice") as client:
        yield client


@pytest.fixture
async def bob(edge: Edge) -> AsyncGenerator[Client]:
    """Another owner."""
    async with await edge.client("bob") as client:
        yield client


@pytest.fixture
async def admin(edge: Edge) -> AsyncGenerator[Client]:
    async with await edge.client("root", scopes=[Scope.ADMIN]) as client:
        yield client


@pytest.fixture
async def anyone(edge: Edge) -> AsyncGenerator[Client]:
    """Somebody without a key."""
    async with edge.client_with(None) as client:
        yield client


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Drives the edge from a test that is not asynchronous itself."""
    with asyncio.Runner() as runner:
        yield runner
