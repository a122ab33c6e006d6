"""Streams that are opened and never read do not affect other callers."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tests.hostile.watch import Watch
from tests.support.patience import FACTOR
from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(300)

HELD = 600
"""More than an owner may have on all replicas, and fewer than connections of an address."""
LIVE_S = 0.5 * FACTOR
TRIES = 3
"""Held streams slow every answer; other work of the machine slows only some."""


def test_held_streams_are_refused_beyond_a_number_and_harm_no_neighbour(
    service: Service, watch: Watch, attacker: httpx.Client, neighbour: httpx.Client
) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(_stream(service, attacker)) for _ in range(HELD)]
        statuses = [each.recv(12)[-3:] for each in held]
        assert set(statuses) <= {b"200", b"429"}
        assert b"429" in statuses
        for _ in range(TRIES):
            watch.begin()
            submitted = neighbour.post("/diffusion/v1/generate", json=diffusion(steps=2))
            job_id = submitted.json()["request_id"]
            with neighbour.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
                events = [line for line in answer.iter_lines() if line.startswith("event: ")]
            assert events[-1] == "event: completed"
            if watch.longest_s < LIVE_S:
                break
        assert watch.longest_s < LIVE_S


def _stream(service: Service, caller: httpx.Client) -> socket.socket:
    """Open a stream that reads at most a few kilobytes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", urlsplit(service.url).port))
    head = f"GET /v1/events HTTP/1.1\r\nHost: d\r\nAuthorization: {caller.headers['authorization']}"
    connection.sendall(f"{head}\r\n\r\n".encode())
    return connection
