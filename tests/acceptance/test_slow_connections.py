"""Connections of callers who have no key, and send nothing."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from statistics import median

import httpx

from tests.support.service import Service, diffusion

CONNECTIONS = 4096
ADDRESSES = [f"127.0.0.{n}" for n in range(2, 6)]


def test_4096_slow_connections_stop_no_other_caller(service: Service) -> None:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    waited = []
    with ExitStack() as stack:
        for number in range(CONNECTIONS):
            connection = stack.enter_context(socket.socket())
            connection.bind((ADDRESSES[number % len(ADDRESSES)], 0))
            connection.connect(("127.0.0.1", service.port))
            connection.sendall(b"GET /health/live HTTP/1.1\r\nX: ")
        for _ in range(10):
            begun = time.monotonic()
            with httpx.Client(base_url=service.url, trust_env=False, timeout=5) as other:
                assert other.get("/health/live").status_code == httpx.codes.OK
            waited.append(time.monotonic() - begun)
        request_id = service.submit("diffusion", diffusion())
    assert median(waited) < 1
    assert max(waited) < 5
    assert service.ended(request_id)["status"] == 1
