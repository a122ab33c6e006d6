"""What is looked at over the network: the port of the API, and the way of callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path

import pytest
import uvicorn

from serve_app.operations.diagnosis.callback_check import CallbackCheck
from serve_app.operations.diagnosis.findings import Finding, Level
from serve_app.operations.diagnosis.http_check import HttpCheck
from settings.callbacks import CallbackSettings
from settings.http import HttpSettings
from tests.support.edge import running_edge
from tests.support.polling import eventually

LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.fixture
async def other_port() -> AsyncIterator[int]:
    """Of a program that is no Darkroom, and answers every call alike."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def http(port: int, *, is_up: bool = False) -> Finding:
    [found] = await HttpCheck(HttpSettings(port=port), is_up=is_up).run()
    return found


async def callback(url: str | None, settings: CallbackSettings | None = None) -> Finding:
    opened = settings or CallbackSettings(allow_networks=LOOPBACK)
    [found] = await CallbackCheck(opened, url=url).run()
    return found


async def test_a_port_is_told_that_another_program_has(other_port: int) -> None:
    found = await http(other_port)
    assert (found.level, str(other_port) in found.what) == (Level.ERROR, True)
    assert "--port" in str(found.remedy)


async def test_a_port_may_be_free(free_port: int) -> None:
    assert (await http(free_port)).level is Level.NOTE
    assert (await http(free_port, is_up=True)).level is Level.ERROR


async def test_a_service_that_runs_is_told_whether_it_is_ready(
    tmp_path: Path, free_port: int
) -> None:
    async with running_edge(tmp_path) as edge:
        config = uvicorn.Config(edge.app, port=free_port, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        assert (await http(free_port, is_up=True)).level is Level.OK
        server.should_exit = True
        await serving


async def test_callbacks_are_not_tried_without_an_address() -> None:
    assert (await callback(None)).level is Level.NOTE


async def test_a_receiver_is_connected_to(other_port: int, free_port: int) -> None:
    assert (await callback(f"http://127.0.0.1:{other_port}/hook")).level is Level.OK
    found = await callback(f"http://127.0.0.1:{free_port}/hook")
    assert (found.level, "firewall" in str(found.remedy)) == (Level.ERROR, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://10.0.0.1/hook", "_ALLOW_NETWORKS"),
        ("ftp://example.com/hook", "_ALLOW_NETWORKS"),
        ("http://nowhere.invalid/hook", "name server"),
    ],
)
async def test_an_address_that_is_refused_is_told_with_what_decides(url: str, said: str) -> None:
    found = await callback(url, CallbackSettings())
    assert (found.level, said in str(found.remedy)) == (Level.ERROR, True)


async def test_a_proxy_is_connected_to(other_port: int, free_port: int) -> None:
    def through(port: int) -> CallbackSettings:
        return CallbackSettings.model_validate({"proxy": f"http://user:hidden@127.0.0.1:{port}"})

    assert (await callback(None, through(other_port))).level is Level.OK
    found = await callback(None, through(free_port))
    assert (found.level, "hidden" in found.what) == (Level.ERROR, False)
