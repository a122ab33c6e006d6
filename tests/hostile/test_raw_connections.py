"""Raw connections without a key, and floods on websockets with one, harm no neighbour."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from tests.hostile.watch import Watch
from tests.support.patience import FACTOR
from tests.support.service import Service

pytestmark = pytest.mark.timeout(300)

CONNECTIONS = 500
"""Fewer than an address may have."""
NEIGHBOUR_S = 5.0 * FACTOR
TIMEOUT_S = 60.0 * FACTOR
_HOST = b"Host: d\r\n"
_GET = b"GET /health/live HTTP/1.1\r\n" + _HOST
_POST = b"POST /diffusion/v1/generate HTTP/1.1\r\n" + _HOST + b"Content-Type: application/json\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n"
_UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
_LAST = _GET + b"Connection: close\r\n\r\n"
_PINGS = b"\x89\x80\0\0\0\0" * 100_000

BEGINNINGS = {
    "nothing": b"",
    "half a head": _GET + b"X: a",
    "half a body": _POST + b"Content-Length: 5000\r\n\r\n{",
    "a body that waits for 100": _POST + b"Content-Length: 5000\r\nExpect: 100-continue\r\n\r\n",
    "an answer that is not read": b"GET /openapi.json HTTP/1.1\r\n" + _HOST + b"\r\n",
    "half a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 20,
}
"""The first bytes of connections that then stay open and send nothing more."""
REQUESTS = {
    "500 requests at once": (_GET + b"\r\n") * 500,
    "500 requests for unknown paths": (b"GET /%ff HTTP/1.1\r\n" + _HOST + b"\r\n") * 500,
    "1,000 headers": _GET + b"".join(b"X%d: 1\r\n" % n for n in range(1000)) + b"\r\n",
    "tiny chunks with extensions": _CHUNKED
    + b"\r\n"
    + b"1;a=b;c\r\n{\r\n" * 50_000
    + b"0\r\nX: 1\r\n\r\n",
    "an endless trailer": _CHUNKED + b"\r\n0\r\n" + b"X: 1\r\n" * 50_000,
    "two lengths": _POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "a length and chunks": _CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + _GET + b"\r\n",
    "an upgrade to nothing known": _GET + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n" + _PINGS,
    "pings without a key": b"GET /ws HTTP/1.1\r\n" + _HOST + _UPGRADE + b"\r\n" + _PINGS,
    "an upgrade with a long path": b"GET /ws?a=" + b"a" * 9000 + b" HTTP/1.1\r\n" + _HOST
    + _UPGRADE + b"\r\n",
    "the URI of another server": b"GET http://elsewhere.example/v1/jobs HTTP/1.1\r\n"
     b"Host: elsewhere.example\r\n\r\n",
}  # fmt: skip


FLOODS = {
    "pings": _PINGS,
    "empty fragments": b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 100_000,
}


@contextmanager
def _neighbour_is_served(watch: Watch, neighbour: httpx.Client) -> Iterator[None]:
    """Check that a neighbour is answered, and soon, at the end of the context and during it."""
    watch.begin()
    yield
    for _ in range(3):
        began = time.monotonic()
        assert neighbour.get("/v1/jobs?limit=1").status_code == httpx.codes.OK
        assert time.monotonic() - began < NEIGHBOUR_S
    assert watch.longest_s < NEIGHBOUR_S, str(watch)


def _connect(service: Service) -> socket.socket:
    """Return a connection that ends with a reset."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.settimeout(TIMEOUT_S)
    connection.connect(("127.0.0.1", service.port))
    return connection


def _answer(connection: socket.socket, request: bytes) -> bytes:
    """Send the request, and return what is received until the connection is closed."""

    def send() -> None:
        with suppress(OSError):
            connection.sendall(request)

    sender = threading.Thread(target=send)
    sender.start()
    answer = bytearray()
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            answer += part
    sender.join()
    return bytes(answer)


@pytest.mark.parametrize("name", BEGINNINGS)
def test_held_connections_harm_no_neighbour(
    service: Service, watch: Watch, neighbour: httpx.Client, name: str
) -> None:
    with ExitStack() as stack, _neighbour_is_served(watch, neighbour):
        for _ in range(CONNECTIONS):
            stack.enter_context(_connect(service)).sendall(BEGINNINGS[name])


@pytest.mark.parametrize("name", REQUESTS)
def test_raw_requests_are_refused_and_harm_no_neighbour(
    service: Service, watch: Watch, neighbour: httpx.Client, name: str
) -> None:
    with _neighbour_is_served(watch, neighbour):
        for _ in range(3):
            with _connect(service) as connection:
                answer = _answer(connection, REQUESTS[name] + _LAST)
                statuses = re.findall(rb"^HTTP/1\.1 (\d\d\d) ", answer, re.MULTILINE)
                assert statuses
                assert {each for each in statuses if each[:1] not in b"24"} <= {b"503"}
            with _connect(service) as connection:
                connection.setblocking(False)
                connection.send(REQUESTS[name])


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_on_websockets_harms_no_neighbour(
    service: Service, watch: Watch, attacker: httpx.Client, neighbour: httpx.Client, name: str
) -> None:
    key = f"Authorization: {attacker.headers['authorization']}\r\n".encode()
    head = b"GET /ws HTTP/1.1\r\n" + _HOST + key + _UPGRADE + b"\r\n"
    with _neighbour_is_served(watch, neighbour):
        for _ in range(8):
            with _connect(service) as connection:
                assert b"\x03\xf0too many frames" in _answer(connection, head + FLOODS[name])
