"""The API of an edge, on a port for the command line."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator

import pytest
import uvicorn

from tests.support.edge import Edge
from tests.support.polling import eventually


@pytest.fixture
async def url(edge: Edge) -> AsyncGenerator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(edge.app, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await eventually(lambda: server.started)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving
