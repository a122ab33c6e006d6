"""Callers who hold connections, and send or take as little as they can."""

from __future__ import annotations

import json
import select
import socket
import time
from contextlib import ExitStack

import pytest

from tests.integration.edge.conftest import PATIENCE_S, SHORT, Front, get, received

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


def connecting(front: Front, source: str) -> socket.socket:
    """A connection that may be established, refused or reset later."""
    connection = socket.socket()
    connection.bind((source, 0))
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", front.port))
    return connection


def test_one_address_has_so_many_connections(patient_front: Front) -> None:
    most = SHORT["max_connections_per_address"]
    give_up_at = time.monotonic() + PATIENCE_S
    with ExitStack() as stack:
        held = [
            stack.enter_context(connecting(patient_front, "127.0.0.9")) for _ in range(most + 20)
        ]
        while len(closed := _closed(held)) < 20:  # which of them, its threads decide
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        time.sleep(0.5)
        assert len(_closed(held)) == 20
        assert all(received(connection) == b"" for connection in closed)
        assert patient_front.live_s() < PATIENCE_S


def _closed(connections: list[socket.socket]) -> list[socket.socket]:
    """Those with something to read; where nothing was asked, that is their end."""
    return select.select(connections, [], [], 0)[0]


def test_a_slow_head_is_given_up(front: Front) -> None:
    with front.connect() as connection:
        assert trickle(connection, get("/health/live", "X: " + "a" * 1000)) < PATIENCE_S


def test_a_connection_without_a_request_is_given_up(front: Front) -> None:
    begun = time.monotonic()
    with front.connect() as connection:
        received(connection)
    assert time.monotonic() - begun < PATIENCE_S


def test_a_connection_between_requests_is_given_up(front: Front) -> None:
    with front.connect() as connection:
        connection.sendall(get("/health/live").replace(b"close", b"keep-alive"))
        begun = time.monotonic()
        assert received(connection).startswith(b"HTTP/1.1 200")
    assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize("has_key", [True, False])
def test_a_slow_body_is_given_up(front: Front, *, has_key: bool) -> None:
    key = f"Authorization: Bearer {front.key}\r\n" if has_key else ""
    head = (
        f"POST /diffusion/v1/generate HTTP/1.1\r\nHost: darkroom\r\n{key}"
        "Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    )
    with front.connect() as connection:
        connection.sendall(head.encode())
        assert trickle(connection, b" " * 5000) < PATIENCE_S
        answer = received(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408" if has_key else b"HTTP/1.1 401")


def test_slow_connections_of_many_addresses_stop_no_other_caller(patient_front: Front) -> None:
    with ExitStack() as stack:
        for address in ADDRESSES * 200:
            stack.enter_context(connecting(patient_front, address))
        assert max(patient_front.live_s() for _ in range(20)) < PATIENCE_S


def test_a_replica_gets_no_more_requests_than_it_may_serve(narrow_front: Front) -> None:
    stream = get("/v1/events", f"Authorization: Bearer {narrow_front.key}")
    with ExitStack() as stack:
        held = [stack.enter_context(narrow_front.connect()) for _ in range(3)]
        for connection in held:
            connection.sendall(stream)
            assert connection.recv(12) == b"HTTP/1.1 200"
        refused = narrow_front.ask(get("/health/live"))
        head, _, body = refused.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 2" in head.lower()
        assert json.loads(body)["error"]["type"] == "unavailable"
        held[0].close()
        give_up_at = time.monotonic() + PATIENCE_S
        while not narrow_front.ask(get("/health/live")).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < give_up_at
