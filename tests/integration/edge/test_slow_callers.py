"""Callers who hold connections, and send or take as little as they can."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress

import pytest

from tests.integration.edge.conftest import SHORT, Front, get, received

ADDRESSES = [f"127.0.0.{n}" for n in range(2, 7)]


def trickle(connection: socket.socket, text: bytes, *, pause_s: float = 0.2) -> float:
    """Send byte after byte until the other side closes; how long that took."""
    begun = time.monotonic()
    try:
        for byte in text:
            connection.sendall(bytes([byte]))
            time.sleep(pause_s)
    except (BrokenPipeError, ConnectionResetError):
        return time.monotonic() - begun
    return float("inf")


def test_one_address_has_so_many_connections(front: Front) -> None:
    most = SHORT["max_connections_per_address"]
    closed = 0
    with ExitStack() as stack:
        for number in range(most + 20):
            with suppress(ConnectionResetError):
                held = stack.enter_context(front.connect("127.0.0.9"))
                if number < most:
                    continue
                held.settimeout(3 * SHORT["header_timeout_s"])
                assert received(held) == b""  # after the time-out it would be a 408
            closed += 1
        assert closed == 20
        assert front.live_s() < 1


def test_a_slow_head_is_given_up(front: Front) -> None:
    with front.connect() as connection:
        assert trickle(connection, get("/health/live", "X: " + "a" * 1000)) < 6


def test_a_connection_without_a_request_is_given_up(front: Front) -> None:
    begun = time.monotonic()
    with front.connect() as connection:
        received(connection)
    assert time.monotonic() - begun < 2 * SHORT["header_timeout_s"]


def test_a_connection_between_requests_is_given_up(front: Front) -> None:
    with front.connect() as connection:
        connection.sendall(get("/health/live").replace(b"close", b"keep-alive"))
        begun = time.monotonic()
        assert received(connection).startswith(b"HTTP/1.1 200")
    assert time.monotonic() - begun < 2 * SHORT["idle_timeout_s"]


@pytest.mark.parametrize("has_key", [True, False])
def test_a_slow_body_is_given_up(front: Front, *, has_key: bool) -> None:
    key = f"Authorization: Bearer {front.key}\r\n" if has_key else ""
    head = (
        f"POST /diffusion/v1/generate HTTP/1.1\r\nHost: darkroom\r\n{key}"
        "Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    )
    with front.connect() as connection:
        connection.sendall(head.encode())
        assert trickle(connection, b" " * 5000) < 6
        answer = received(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408" if has_key else b"HTTP/1.1 401")


def test_slow_connections_of_many_addresses_stop_no_other_caller(front: Front) -> None:
    with ExitStack() as stack:
        begun = time.monotonic()
        for address in ADDRESSES * 200:
            connection = stack.enter_context(socket.socket())
            connection.bind((address, 0))
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", front.port))
        waited = [front.live_s() for _ in range(20)]
        assert time.monotonic() - begun < 2 * SHORT["header_timeout_s"]
    assert max(waited) < 3  # a packet that is lost in the crowd is sent again after 1 s
