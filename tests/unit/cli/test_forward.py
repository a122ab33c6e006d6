"""`darkroom forward`: programs without a field for a key, and pages that must not use the port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import httpx
import pytest
from websockets.asyncio.client import connect

from cli.forward import Forwarder
from cli.terminal import ExitCode
from tests.support.edge import Edge
from tests.support.generate_bodies import workflow_body
from tests.support.polling import eventually
from tests.unit.cli.conftest import Run

Handle: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def forwarded(url: str, key: str) -> AsyncGenerator[str]:
    """The address `host:port` of a port that is forwarded."""
    server = await asyncio.start_server(Forwarder(url, key).handle, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture
async def address(edge: Edge, url: str) -> AsyncGenerator[str]:
    async with forwarded(url, await edge.key("alice")) as address:
        yield address


@pytest.fixture
async def program(address: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A program that knows a host and a port."""
    async with httpx.AsyncClient(base_url=f"http://{address}") as program:
        yield program


async def test_a_program_that_sends_no_key_or_another_one_is_the_owner(
    edge: Edge, program: httpx.AsyncClient
) -> None:
    for headers in ({}, {"Authorization": "Basic dW5kZWZpbmVk", "X-API-Key": "none"}):
        answer = await program.post("/prompt", json=workflow_body(), headers=headers)
        assert answer.status_code == 200, answer.text
        job = await edge.job(answer.json()["prompt_id"])
        assert job.submitted.owner == "alice"
    assert (await program.get("/sdapi/v1/samplers")).status_code == 200
    assert (await program.get("/nothing")).status_code == 404


async def test_large_bodies_pass_in_both_directions(edge: Edge, program: httpx.AsyncClient) -> None:
    content = json.dumps("a" * 1_000_000).encode()
    stored = await program.post("/userdata/large.json", content=content)
    assert stored.json() == "large.json"
    assert (await program.get("/userdata/large.json")).content == content


async def test_a_websocket_passes(edge: Edge, address: str) -> None:
    async with connect(f"ws://{address}/ws?clientId=program-1") as websocket:
        first = json.loads(await asyncio.wait_for(websocket.recv(), 20))
        assert first["data"]["sid"] == "program-1"
        await websocket.send(json.dumps({"type": "feature_flags", "data": {}}))
        assert json.loads(await asyncio.wait_for(websocket.recv(), 20))["type"] == "feature_flags"


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example", "Origin": "http://evil.example"},
    {"Host": ""},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


async def test_a_page_of_another_origin_may_not_use_the_port(program: httpx.AsyncClient) -> None:
    for headers in FOREIGN:
        answer = await program.get("/queue", headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "not_forwarded")
    own = {"Origin": str(program.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    for headers in (own, {"Host": "localhost:8188"}, {"Host": "host.docker.internal"}):
        assert (await program.get("/queue", headers=headers)).status_code == 200, headers


INVALID = [
    b"GET /queue\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /queue HTTP/1.1\r\nHost: 127.0.0.1\r\n X: folded\r\n\r\n",
    b"GET /queue HTTP/1.1\r\nHost: 127.0.0.1\r\nno colon\r\n\r\n",
    b"GET /queue HTTP/1.1\r\nHost: [::\r\n\r\n",
]


async def test_a_head_that_is_not_valid_is_refused(address: str) -> None:
    host, _, port = address.partition(":")
    for head in INVALID:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        answer = await asyncio.wait_for(reader.readline(), 20)
        assert b" 400 " in answer, head[:60]
        writer.close()


async def test_a_connection_without_a_request_is_closed(address: str) -> None:
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /queue")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


def test_the_end_of_the_command_ends_open_connections_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def end_with_a_connection() -> None:
        async with forwarded("http://127.0.0.1:9", "dk_a_b") as address:
            host, _, port = address.partition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            await eventually(lambda: len(asyncio.all_tasks()) > 1)
            writer.close()

    asyncio.run(end_with_a_connection())
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_service_that_does_not_answer_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = forwarded(f"http://127.0.0.1:{port}", "dk_a_b")
    async with service as address, httpx.AsyncClient() as program:
        answer = await program.get(f"http://{address}/queue")
    assert answer.status_code == 502
    assert "dk_a_b" not in answer.text


@asynccontextmanager
async def service(handle: Handle) -> AsyncGenerator[str]:
    """The forwarded address of a service that handles its connections so."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with forwarded(url, "dk_a_b") as address:
        yield address
    server.close()


async def sent(address: str, request: bytes, *, has_ended: bool) -> bytes:
    """Return all that a program receives until its connection is closed."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    if has_ended:
        writer.write_eof()
    received = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return received


async def test_a_program_that_ends_its_request_gets_the_answer() -> None:
    """A proxy with `abortonclose`, and this service, end a request whose sender has ended."""

    async def answer_unless_ended(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), 1)
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody"
    async with service(answer_unless_ended) as address:
        for has_ended in (False, True):
            assert (await sent(address, request, has_ended=has_ended)).endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("upgrade", ["", "Upgrade: websocket\r\n"])
async def test_a_service_that_closes_without_an_answer_is_told(upgrade: str) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    request = f"GET / HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n".encode()
    async with service(close) as address:
        received = await sent(address, request, has_ended=False)
    assert received.startswith(b"HTTP/1.1 502 ")
    assert b"without an answer" in received


async def test_a_websocket_ends_with_its_program() -> None:
    has_ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        has_ended.set()
        writer.close()

    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n"
    async with service(wait) as address:
        await sent(address, request, has_ended=True)
        await asyncio.wait_for(has_ended.wait(), 60)


async def test_the_command_ends_with_a_reason_where_it_cannot_forward(
    edge: Edge, run: Run, url: str
) -> None:
    key = await edge.key("alice")
    taken = url.rpartition(":")[2]
    result = await run(key, "forward", "--port", taken)
    assert (result.exit_code, taken in result.stderr) == (ExitCode.FAILED, True)
    result = await run(key, "forward", "--url", "http://127.0.0.1:9")
    assert result.exit_code == ExitCode.UNAVAILABLE
