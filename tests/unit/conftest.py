from __future__ import annotations

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """A port of this machine on which no program listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
