from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import numpy as np
import pytest

from actors.worker.result_file import encode_png
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import workflow_body
from tests.support.live.websocket import Websocket, connected

CLIENT = "client-1"

Connect = Callable[..., AbstractAsyncContextManager[Websocket]]


async def queue(client: Client, **members: Any) -> str:
    """The id of a prompt that was accepted."""
    answer = await client.post("/prompt", json=workflow_body() | {"client_id": CLIENT} | members)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt_id"])


async def ended(edge: Edge, client: Client, **members: Any) -> str:
    """The id of a prompt that was accepted and has its picture."""
    id = await queue(client, **members)
    await edge.run(id)
    await edge.project()
    return id


@pytest.fixture
async def key(edge: Edge) -> str:
    """Alice's."""
    return await edge.key("alice")


@pytest.fixture
def connect(edge: Edge, key: str) -> Connect:
    """Opens `/ws` with Alice's key: `connect(path)`."""
    return partial(_connect, edge, key)


def _connect(edge: Edge, key: str, path: str = f"/ws?clientId={CLIENT}") -> Any:
    return connected(edge.app, path, headers={"Authorization": f"Bearer {key}"})


@pytest.fixture
def png() -> bytes:
    return encode_png(np.full((8, 8, 3), 200, np.uint8), {})
